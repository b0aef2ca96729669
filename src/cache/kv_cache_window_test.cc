// Layers with windows: what a sequence gives back, where a prompt can go on, what a pin costs.
#include <gtest/gtest.h>

#include <set>

#include "base/bytes.h"
#include "cache/cache_driver_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kSalt = 7;

class KvCacheWindows : public KvCacheTest {
 protected:
  void MakeWindows(std::vector<uint32_t> windows, uint32_t num_blocks = 64) {
    Make(num_blocks, LayoutOf(windows));
    ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  }
  // Computes the prompt with resume points at the ends of its messages.
  KvSequence RunMessages(const Tokens& prompt, std::vector<uint32_t> ends) {
    MatchResult match = cache().Match(ns_, prompt, {.use_cursor = false});
    miss_ = match.miss;
    driver_->reused = match.num_reused();
    KvSequence sequence = cache().Fetch(std::move(match), 1024);
    driver_->Verify(sequence, kSalt);
    sequence.KeepResumePoints(cache().ResumePointsOf(static_cast<uint32_t>(prompt.size()), ends));
    EXPECT_TRUE(driver_->Append(sequence, kSalt, std::span(prompt).subspan(reused()),
                                KvCache::CommitKind::kEnd));
    return sequence;
  }
  uint32_t Reused(const Tokens& prompt) {
    MatchResult match = cache().Match(ns_, prompt, {});
    miss_ = match.miss;
    return match.num_reused();
  }
};

TEST_F(KvCacheWindows, ASequenceHoldsItsWindowAndNoMore) {
  for (const uint32_t window : {1u, 15u, 16u, 17u, 40u, 64u}) {
    MakeWindows({0, window}, 80);
    KvSequence sequence = cache().Fetch(cache().Match(ns_, Tokens{1}, {.reuse = false}), 600);
    for (uint32_t tokens = 0; tokens < 500;) {
      const uint32_t step = 1 + tokens % 23;
      ASSERT_TRUE(driver_->Append(sequence, kSalt, TokensFrom(tokens, step)));
      tokens += step;
      driver_->Verify(sequence, kSalt);
      const BlockTable& full = sequence.tables()[0];
      const BlockTable& windowed = sequence.tables()[1];
      EXPECT_EQ(full.num_held(), CeilDiv(tokens, 16));
      EXPECT_EQ(windowed.size(), full.size());
      const uint32_t begin = tokens < window ? 0 : tokens - window + 1;
      EXPECT_EQ(windowed.first(), std::min<size_t>(begin / 16, full.size()));
    }
    EXPECT_LE(cache().usage().pinned_blocks, CeilDiv(500 + 23, 16) + CeilDiv(window + 15, 16) + 1);
  }
}

TEST_F(KvCacheWindows, APromptGoesOnFromTheEndsOfMessages) {
  MakeWindows({0, 20});
  const Tokens prompt = TokensFrom(1, 200);
  { const KvSequence kept = RunMessages(prompt, {50, 100, 160}); }
  // The next turn: all of the prompt, whose window is kept.
  EXPECT_EQ(Reused(Join(prompt, TokensFrom(2, 30))), 200u);
  EXPECT_FALSE(miss_);
  // Another text after a message: everything up to that message's end is reused.
  for (const uint32_t end : {50u, 100u, 160u}) {
    const Tokens edited = Join(First(prompt, end), TokensFrom(3, 60));
    EXPECT_EQ(Reused(edited), end);
  }
  // In the middle of a message: from the end of the one before, since the window is gone.
  const uint32_t reused = Reused(Join(First(prompt, 145), TokensFrom(3, 60)));
  EXPECT_GE(reused, 100u);
  EXPECT_LT(reused, 116u);
  ExpectMiss(MissReason::kWindow, reused);
}

TEST_F(KvCacheWindows, AWindowThatReachesTheBeginningNeedsNoResumePoint) {
  for (const uint32_t window : {47u, 48u, 49u}) {
    MakeWindows({0, window});
    const Tokens prompt = TokensFrom(1, 48);
    { const KvSequence kept = RunMessages(prompt, {}); }
    // The same prompt computes its last token again, a longer one continues at its end. Both find
    // the w - 1 tokens before.
    EXPECT_EQ(Reused(prompt), 47u);
    EXPECT_EQ(Reused(Join(prompt, Tokens{5})), 48u);
    EXPECT_EQ(Reused(Join(First(prompt, 32), TokensFrom(9, 20))), 32u) << window;
  }
}

TEST_F(KvCacheWindows, WindowsAloneAreFoundTooAndTheirNodesGoWithThem) {
  MakeWindows({17, 40, 17});
  const Tokens prompt = TokensFrom(1, 150);
  { const KvSequence kept = RunMessages(prompt, {}); }
  EXPECT_EQ(Reused(Join(prompt, Tokens{5})), 150u);
  EXPECT_EQ(Reused(First(prompt, 100)), 0u);
  ExpectMiss(MissReason::kWindow, 0);
  // Other prompts take all blocks: nothing of the prompt is left, not even nodes.
  for (uint64_t seed = 10; seed < 30; ++seed) {
    const KvSequence other = RunMessages(TokensFrom(seed, 60), {});
  }
  EXPECT_EQ(Reused(Join(prompt, Tokens{5})), 0u);
  ExpectMiss(MissReason::kEvicted, 0);
  cache().CheckInvariants();
}

TEST_F(KvCacheWindows, TruncateSaysWhereTheWindowIsGone) {
  MakeWindows({0, 20});
  KvSequence sequence = RunMessages(TokensFrom(1, 120), {60});
  const Status gone = cache().Truncate(sequence, 80);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, Code::kNotFound);
  EXPECT_NE(gone.error().message.find("the window before token 80 is gone"), std::string::npos)
      << gone.error().message;
  EXPECT_EQ(sequence.num_tokens(), 120u);
  driver_->Verify(sequence, kSalt);
  // Truncating within the block that is still held works, and so does truncating to nothing.
  EXPECT_TRUE(cache().Truncate(sequence, 116));
  driver_->Verify(sequence, kSalt);
  EXPECT_TRUE(driver_->Append(sequence, kSalt, TokensFrom(8, 40)));
  driver_->Verify(sequence, kSalt);
  EXPECT_TRUE(cache().Truncate(sequence, 0));
  EXPECT_TRUE(driver_->Append(sequence, kSalt, TokensFrom(9, 10)));
  driver_->Verify(sequence, kSalt);
}

TEST_F(KvCacheWindows, ForksGoTheirWaysAcrossTheWindowsEdge) {
  for (const uint32_t at : {15u, 16u, 17u, 63u, 64u, 65u}) {
    MakeWindows({0, 16, 33}, 128);
    KvSequence one = RunMessages(TokensFrom(1, at), {});
    KvSequence two = cache().Fork(one, 256);
    EXPECT_TRUE(driver_->Append(one, kSalt, TokensFrom(2, 50)));
    driver_->Verify(two, kSalt);
    EXPECT_TRUE(driver_->Append(two, kSalt, TokensFrom(3, 70)));
    driver_->Verify(one, kSalt);
    driver_->Verify(two, kSalt);
    cache().CheckInvariants();
  }
}

// Four sequences share a window and then leave it one after the other. Each needs a separate window
// then, so the shared blocks are counted for each.
TEST_F(KvCacheWindows, AReservationCountsAWindowForEachSequence) {
  MakeWindows({0, 40}, 64);
  const KvDemand demand{.prompt_tokens = 80, .tokens = 160, .n = 4};
  const uint64_t window_blocks =
      cache().layout().SequenceBlocks(cache().layout().kinds()[1], 160, 24);
  EXPECT_EQ(window_blocks, CeilDiv(40 + 24 - 2, 16) + 2);
  EXPECT_EQ(demand.blocks(cache().layout(), 24), 5 + 4 * 5 + 4 * window_blocks);
  const Tokens prompt = TokensFrom(1, 80);
  MatchResult match = cache().Match(ns_, prompt, {});
  auto reservation = cache().Reserve(match, demand);
  ASSERT_TRUE(reservation);
  std::vector<KvSequence> sequences;
  sequences.push_back(cache().Fetch(std::move(match), 160, *reservation));
  ASSERT_TRUE(driver_->Append(sequences[0], kSalt, prompt, KvCache::CommitKind::kEnd));
  while (sequences.size() < 4) sequences.push_back(cache().Fork(sequences[0], 160));
  KvSequence greedy = cache().Fetch(cache().Match(ns_, Tokens{1}, {.reuse = false}), 1024);
  while (driver_->Append(greedy, kSalt, TokensFrom(5, 16))) {
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(driver_->Append(sequences[i], kSalt, TokensFrom(10 + i, 80))) << i;
    cache().CheckInvariants();
  }
  for (const KvSequence& sequence : sequences) driver_->Verify(sequence, kSalt);
}

TEST_F(KvCacheWindows, ResumePointsAreMessageEndsAndEvery1024Tokens) {
  EXPECT_TRUE(cache().ResumePointsOf(5000, std::vector<uint32_t>{10}).empty());
  MakeWindows({0, 20});
  EXPECT_EQ(cache().ResumePointsOf(2500, std::vector<uint32_t>{10, 1024, 2500}),
            (std::vector<uint32_t>{10, 1024, 2048, 2500}));
  Make(64, LayoutOf({0, 1500}));
  EXPECT_EQ(cache().ResumePointsOf(4000, {}), (std::vector<uint32_t>{1500, 3000, 4000}));
}

TEST_F(KvCacheWindows, ALongPromptGoesOnFromEach1024thToken) {
  MakeWindows({0, 20}, 300);
  const Tokens prompt = TokensFrom(1, 2500);
  {
    KvSequence sequence = cache().Fetch(cache().Match(ns_, prompt, {}), 2600);
    sequence.KeepResumePoints(cache().ResumePointsOf(2500, {}));
    ASSERT_TRUE(driver_->Append(sequence, kSalt, prompt, KvCache::CommitKind::kEnd));
  }
  for (const auto& [cut, found] : {std::pair{1000u, 0u}, {1100u, 1024u}, {2400u, 2048u}}) {
    EXPECT_EQ(Reused(Join(First(prompt, cut), TokensFrom(3, 60))), found) << cut;
    if (found > 0) ExpectMiss(MissReason::kWindow, found);
  }
}

// Other prompts take the windows of one conversation, a few more in each round.
TEST_F(KvCacheWindows, TheOldestResumePointsAreEvictedFirst) {
  const std::vector<uint32_t> ends = {50, 100, 160};
  std::set<size_t> seen;  // how many resume points were lost
  for (uint32_t others = 0; others < 16; ++others) {
    MakeWindows({0, 20}, 40);
    const Tokens prompt = TokensFrom(1, 200);
    { const KvSequence kept = RunMessages(prompt, ends); }
    for (uint32_t i = 0; i < others; ++i) {
      const KvSequence other = RunMessages(TokensFrom(10 + i, 20), {});
    }
    size_t lost = 0;
    for (const uint32_t end : ends) {
      if (Reused(Join(First(prompt, end), TokensFrom(3, 60))) == end) break;
      ++lost;
    }
    for (size_t i = lost; i < ends.size(); ++i) {
      EXPECT_EQ(Reused(Join(First(prompt, ends[i]), TokensFrom(3, 60))), ends[i]) << others;
    }
    seen.insert(lost);
    if (lost > 0 && lost < ends.size()) {
      EXPECT_LT(Reused(Join(First(prompt, ends[lost - 1]), TokensFrom(3, 60))), ends[lost - 1]);
      EXPECT_STREQ(ToString(miss_->reason), "window");  // the full blocks are still there
    }
  }
  EXPECT_TRUE(seen.contains(0) && seen.contains(1)) << seen.size();
}

}  // namespace
}  // namespace kvasir
