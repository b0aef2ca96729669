// Reservations: who has one gets its blocks, whatever the others do.
#include <gtest/gtest.h>

#include "base/rounds_for_test.h"
#include "cache/cache_driver_for_test.h"

namespace kvasir {
namespace {

class Reservations : public KvCacheTest {
 protected:
  Result<Reservation> Reserve(const Tokens& prompt, uint32_t tokens, uint32_t n = 1) {
    MatchResult match = cache().Match(ns_, prompt, {});
    return cache().Reserve(match, {static_cast<uint32_t>(prompt.size()), tokens, n});
  }
  // Returns a computed sequence of `prompt` that draws from a reservation up to `tokens`.
  KvSequence Start(const Tokens& prompt, uint32_t tokens, uint32_t n, Reservation* reservation) {
    MatchResult match = cache().Match(ns_, prompt, {});
    auto reserved = cache().Reserve(match, {static_cast<uint32_t>(prompt.size()), tokens, n});
    EXPECT_TRUE(reserved) << reserved.error().message;
    *reservation = std::move(*reserved);
    const uint32_t reused = match.num_reused();
    KvSequence sequence = cache().Fetch(std::move(match), 512, *reservation);
    EXPECT_TRUE(
        driver_->Append(sequence, 7, std::span(prompt).subspan(reused), KvCache::CommitKind::kEnd));
    return sequence;
  }
  bool Append(KvSequence& sequence, uint32_t tokens, uint64_t salt = 7) {
    return driver_->Append(sequence, salt, TokensFrom(++serial_, tokens));
  }

  uint64_t serial_ = 1000;
};

TEST_F(Reservations, HoldThePromptOnceAndTheRestPerSequence) {
  const KvLayout layout(TinyLayout());
  const KvDemand demand{.prompt_tokens = 40, .tokens = 100, .n = 3};
  EXPECT_EQ(demand.blocks(layout, 512), 2u + 3 * 5);
  KvDemand alone = demand;
  alone.shares_prompt = false;
  EXPECT_EQ(alone.blocks(layout, 512), 3u * 7);
  for (const KvDemand& each : {demand, alone}) {
    for (uint64_t blocks = 0; blocks < 40; ++blocks) {
      KvDemand most = each;
      most.tokens = static_cast<uint32_t>(each.MaxTokens(layout, 512, blocks));
      if (most.tokens == 0) {
        most.tokens = each.prompt_tokens;
        EXPECT_GT(most.blocks(layout, 512), blocks);
        continue;
      }
      EXPECT_GE(most.tokens, each.prompt_tokens);
      EXPECT_LE(most.blocks(layout, 512), blocks);
      ++most.tokens;
      EXPECT_GT(most.blocks(layout, 512), blocks);
    }
  }
  const auto reservation = Reserve(TokensFrom(1, 40), 100, 3);
  ASSERT_TRUE(reservation);
  EXPECT_EQ(reservation->blocks(), 17u);
  EXPECT_EQ(cache().unreserved_blocks(), 32u - 17);
}

TEST_F(Reservations, OthersGetWhatIsNotReserved) {
  Reservation mine;
  KvSequence first = Start(TokensFrom(1, 20), 16 * 20, 1, &mine);
  KvSequence greedy = cache().Fetch(cache().Match(ns_, TokensFrom(2, 1), {}), 512);
  EXPECT_TRUE(Append(greedy, 16 * (32 - 21)));  // one is kept for the copy of the published tail
  const Status refused = cache().Extend(greedy, TokensFrom(3, 1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  EXPECT_NE(refused.error().message.find("not reserved"), std::string::npos);
  EXPECT_FALSE(Reserve(TokensFrom(4, 5), 17));
  EXPECT_TRUE(Append(first, 16 * 20 - 20));
  cache().CheckInvariants();
}

TEST_F(Reservations, ForksDrawFromOneAndTheLastWritesInPlace) {
  Make(12);
  ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  Reservation mine;
  // 20 tokens: a whole block and a tail; three choices of up to 60 tokens: 1 + 3 * 3 blocks.
  std::vector<KvSequence> choices;
  choices.push_back(Start(TokensFrom(1, 20), 60, 3, &mine));
  for (int i = 1; i < 3; ++i) choices.push_back(cache().Fork(choices[0], 60));
  KvSequence greedy = cache().Fetch(cache().Match(ns_, TokensFrom(2, 1), {}), 512);
  while (Append(greedy, 1)) {
  }
  for (KvSequence& choice : choices) EXPECT_TRUE(Append(choice, 40));
  // No copy for the last: publishing a longer block unlinked the tail.
  EXPECT_EQ(cache().reserved_blocks(), 0u);
  for (KvSequence& choice : choices) driver_->Verify(choice, 7);
}

TEST_F(Reservations, AForkThatEndsReleasesWhatItWouldHaveNeeded) {
  Reservation mine;
  KvSequence first = Start(TokensFrom(1, 32), 96, 3, &mine);
  {
    KvSequence fork = cache().Fork(first, 96);
    EXPECT_TRUE(Append(fork, 16));
    EXPECT_EQ(cache().reserved_blocks(), 3u * 4 - 1);
  }
  EXPECT_EQ(cache().reserved_blocks(), 2u * 4);
  KvSequence other = cache().Fork(first, 96);
  other.Close();
  EXPECT_EQ(cache().reserved_blocks(), 4u);
  EXPECT_TRUE(Append(first, 64));
  EXPECT_EQ(cache().reserved_blocks(), 0u);
}

// As beams do: at each token some of them are dropped and others forked, while somebody else takes
// each block that is not reserved.
TEST_F(Reservations, ForksThatChangePlacesNeverNeedMoreThanTheDemand) {
  for (const uint32_t beams : {2u, 3u, 5u}) {
    Make(1 + beams * 5 + 4);
    ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
    Random random(beams);
    Reservation mine;
    std::vector<KvSequence> all;
    all.push_back(Start(TokensFrom(1, 20), 96, beams, &mine));
    all[0].StopPublishing();
    while (all.size() < beams) all.push_back(cache().Fork(all[0], 96));
    KvSequence greedy = cache().Fetch(cache().Match(ns_, TokensFrom(2, 1), {}), 4096);
    while (Append(greedy, 1)) {
    }
    for (uint32_t length = 20; length < 96; ++length) {
      for (KvSequence& beam : all) ASSERT_TRUE(Append(beam, 1)) << length;
      cache().CheckInvariants();
      // Beams from `kept` on become forks of one before it.
      const auto kept = 1 + static_cast<uint32_t>(random.Below(beams));
      for (uint32_t i = kept; i < beams; ++i) {
        ASSERT_TRUE(cache().ForkInto(all[i], all[random.Below(kept)])) << length;
      }
      while (Append(greedy, 1)) {  // takes what beams do not need any more
      }
    }
    for (KvSequence& beam : all) driver_->Verify(beam, 7);
    all.clear();
    EXPECT_EQ(cache().reserved_blocks(), 0u);
    EXPECT_EQ(mine.blocks(), 0u);
    cache().CheckInvariants();
  }
}

TEST_F(Reservations, TruncatedBlocksMayBeDrawnAgain) {
  Reservation mine;
  KvSequence first = Start(TokensFrom(1, 32), 96, 1, &mine);
  EXPECT_TRUE(Append(first, 64));
  KvSequence greedy = cache().Fetch(cache().Match(ns_, TokensFrom(2, 1), {}), 1024);
  while (Append(greedy, 16)) {
  }
  for (int i = 0; i < 3; ++i) {
    cache().Truncate(first, 40);
    EXPECT_FALSE(Append(greedy, 16));
    EXPECT_TRUE(Append(first, 56));
  }
}

TEST_F(Reservations, GrowAndShrinkChangeThemAndDroppingReleasesThem) {
  auto reservation = Reserve(TokensFrom(1, 16), 32);
  ASSERT_TRUE(reservation);
  EXPECT_TRUE(reservation->Grow(512, 1));
  EXPECT_TRUE(reservation->Grow(400, 1)) << "it has more already";
  const Status refused = reservation->Grow(513, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  EXPECT_EQ(reservation->blocks(), 32u);
  reservation->Shrink(12);
  EXPECT_EQ(cache().unreserved_blocks(), 12u);
  Reservation moved = std::move(*reservation);
  EXPECT_EQ(reservation->blocks(), 0u);
  EXPECT_EQ(cache().reserved_blocks(), 20u);
  moved = Reservation();
  EXPECT_EQ(cache().reserved_blocks(), 0u);
}

// The prompt's last block is used in part, and the request needs all other blocks: instead of a
// copy its tokens are computed again.
TEST_F(Reservations, AMatchGivesUpItsPartialBlockWhereNoCopyFits) {
  Make(4);
  ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  const Tokens prompt = TokensFrom(1, 24);
  { const KvSequence kept = Run(prompt); }
  MatchResult match = cache().Match(ns_, prompt, {});
  EXPECT_TRUE(match.has_cursor());
  const auto reservation = cache().Reserve(match, {24, 64});
  ASSERT_TRUE(reservation) << reservation.error().message;
  EXPECT_EQ(match.num_reused(), 16u);
  EXPECT_FALSE(match.has_cursor());
  ASSERT_TRUE(match.miss);
  EXPECT_STREQ(ToString(match.miss->reason), "pool_full");
  EXPECT_EQ(match.miss->at_token, 16u);
  KvSequence sequence = cache().Fetch(std::move(match), 64, *reservation);
  EXPECT_TRUE(driver_->Append(sequence, 7, std::span(prompt).subspan(16)));
  EXPECT_TRUE(Append(sequence, 40));
  driver_->Verify(sequence, 7);
}

TEST_F(Reservations, AMatchSaysWhereOthersHaveReservedWhatItWouldPin) {
  for (const std::vector<uint32_t>& windows : {std::vector<uint32_t>{0}, {0, 20}, {20}}) {
    Make(8, LayoutOf(windows));
    ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
    const Tokens prompt = TokensFrom(1, 40);
    { const KvSequence kept = Run(prompt); }
    EXPECT_EQ(cache().Match(ns_, prompt, {}).num_reused(), 40u);
    std::vector<Reservation> others;
    while (auto other = Reserve(TokensFrom(2, 1), 2)) others.push_back(std::move(*other));
    ASSERT_LE(cache().unreserved_blocks(), 2u);
    const MatchResult match = cache().Match(ns_, prompt, {});
    EXPECT_EQ(match.num_reused(), 0u);
    ASSERT_TRUE(match.miss);
    EXPECT_EQ(match.miss->reason, MissReason::kPoolFull);
  }
}

// Random requests beside sequences that take all they can get: a sequence that stays
// within its reservation is never refused.
TEST_F(Reservations, AreKeptInRandomSchedules) {
  struct Running {
    KvDemand demand;
    Reservation reservation;
    std::vector<KvSequence> sequences;
    uint32_t forked = 1;
    uint64_t salt = 7;
  };
  uint64_t num_admitted = 0, num_sources_found = 0;
  for (uint64_t seed = 1; seed <= Rounds(300, 70); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    constexpr uint32_t kCross = kCrossLayer;
    const std::vector<uint32_t> windows[] = {
        {0}, {0, 20}, {17, 40, 17}, {0, 0, 33}, {0, kCross}, {0, 20, kCross}, {17, kCross, kCross}};
    const KvLayout layout = LayoutOf(windows[seed % std::size(windows)]);
    Make((12 + static_cast<uint32_t>(random.Below(30))) * layout.num_groups(), layout);
    ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
    std::vector<Running> running;
    std::vector<KvSequence> greedy;
    for (int step = 0; step < 400 && !HasFailure(); ++step) {
      const uint64_t draw = random.Below(100);
      if (draw < 15) {
        const Tokens prompt = TokensFrom(random.Below(6), 1 + random.Below(70));
        Running next;
        next.demand = {.prompt_tokens = static_cast<uint32_t>(prompt.size()),
                       .tokens = static_cast<uint32_t>(prompt.size() + random.Below(60)),
                       .n = 1 + static_cast<uint32_t>(random.Below(3)),
                       .shares_prompt = random.Below(5) != 0};
        Tokens source;
        if (layout.num_cross_groups() > 0 && random.Below(5) != 0) {
          source = TokensFrom(77, 1 + 13 * random.Below(5));
          next.salt = 1000 + source.size();
          next.demand.source_tokens = static_cast<uint32_t>(source.size());
        }
        MatchResult match = cache().Match(
            ns_, prompt,
            {.reuse = next.demand.shares_prompt, .source = {source, next.demand.source_tokens}});
        num_sources_found += !source.empty() && !match.source_miss;
        auto reserved = cache().Reserve(match, next.demand);
        if (!reserved) continue;
        ++num_admitted;
        next.reservation = std::move(*reserved);
        const uint32_t reused = match.num_reused();
        next.sequences.push_back(cache().Fetch(std::move(match), 256, next.reservation));
        if (random.Below(20) == 0) continue;  // cancelled
        ASSERT_TRUE(driver_->ComputeSource(next.sequences[0], next.salt));
        ASSERT_TRUE(driver_->Append(next.sequences[0], next.salt, std::span(prompt).subspan(reused),
                                    KvCache::CommitKind::kEnd));
        while (next.forked < next.demand.n) {
          next.sequences.push_back(cache().Fork(next.sequences[0], 256));
          ++next.forked;
        }
        running.push_back(std::move(next));
      } else if (draw < 30) {
        if (greedy.empty() || random.Below(4) == 0) {
          greedy.push_back(
              cache().Fetch(cache().Match(ns_, TokensFrom(random.Below(6), 40), {}), 256));
        }
        (void)Append(greedy.back(), 1 + static_cast<uint32_t>(random.Below(40)));
      } else if (draw < 34 && !greedy.empty()) {
        greedy.erase(greedy.begin() + static_cast<ptrdiff_t>(random.Below(greedy.size())));
      } else if (!running.empty()) {
        const size_t r = random.Below(running.size());
        Running& one = running[r];
        const size_t s = random.Below(one.sequences.size());
        KvSequence& sequence = one.sequences[s];
        const uint32_t left = one.demand.tokens - sequence.num_tokens();
        if (draw < 80) {
          if (!one.demand.shares_prompt && random.Below(3) == 0) {
            ASSERT_TRUE(cache().Truncate(sequence, 0));
          }
          const uint32_t room = one.demand.tokens - sequence.num_tokens();
          if (room > 0) {
            ASSERT_TRUE(Append(sequence, 1 + static_cast<uint32_t>(random.Below(room)), one.salt));
          }
        } else if (draw < 88 && left > 0) {  // speculation
          const Tokens tokens = TokensFrom(++serial_, 1 + random.Below(std::min(left, 24u)));
          const uint32_t size = sequence.num_tokens();
          ASSERT_TRUE(cache().Extend(sequence, tokens));
          ASSERT_TRUE(cache().Truncate(sequence,
                                       size + static_cast<uint32_t>(random.Below(tokens.size()))));
          driver_->Stamp(sequence, one.salt, size, sequence.num_tokens(), /*check=*/false);
          cache().Commit(sequence, sequence.num_tokens() - size, KvCache::CommitKind::kRunning);
        } else if (draw < 96) {
          if (random.Below(2) == 0) {
            sequence.Close();
            cache().Commit(sequence, 0, KvCache::CommitKind::kEnd);
          }
          one.sequences.erase(one.sequences.begin() + static_cast<ptrdiff_t>(s));
          if (one.sequences.empty()) running.erase(running.begin() + static_cast<ptrdiff_t>(r));
        } else if (draw < 98) {
          running.erase(running.begin() + static_cast<ptrdiff_t>(r));
        } else {
          cache().Erase(ns_);
        }
      }
      cache().CheckInvariants();
      for (const Running& one : running) {
        for (const KvSequence& sequence : one.sequences) driver_->Verify(sequence, one.salt);
      }
    }
    running.clear();
    greedy.clear();
    EXPECT_EQ(cache().reserved_blocks(), 0u);
  }
  EXPECT_GT(num_admitted, Rounds(1'500u, 300u));
  EXPECT_GT(num_sources_found, Rounds(300u, 50u));
}

// Somebody else takes what is not reserved at each moment; others may go on from the same prompt
// and pin its blocks. Then the copies may have to wait for those, and for nothing else.
TEST_F(Reservations, ASequenceThatDropsTokensGetsWhatIsReservedForIt) {
  constexpr uint32_t kTokens = 300, kRows = 64;
  Random random(5);
  const auto below = [&](uint32_t end) { return static_cast<uint32_t>(random.Below(end)); };
  uint32_t begun = 0, waited = 0;
  for (uint64_t round = 0; round < 120; ++round) {
    Make(16 + below(16));
    ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
    const Tokens prompt = TokensFrom(round, 20 + below(100));
    const auto size = static_cast<uint32_t>(prompt.size());
    const uint32_t budget = 16 + below(48), sinks = below(budget / 2), most = budget + kRows + 32;
    const uint32_t exact = std::max(size, budget);
    MatchResult match = cache().Match(ns_, prompt, {});
    auto mine = cache().Reserve(
        match,
        {.prompt_tokens = size, .tokens = kTokens, .most_full_tokens = std::max(exact, most)});
    if (!mine) continue;  // the pool is too small
    ++begun;
    KvSequence sequence = cache().Fetch(std::move(match), 512, *mine);
    ASSERT_TRUE(driver_->Append(sequence, 7, prompt, KvCache::CommitKind::kEnd));
    std::optional<KvSequence> beside;
    if (below(2) == 0) beside = cache().Fetch(cache().Match(ns_, prompt, {}), 512);
    KvSequence greedy = cache().Fetch(cache().Match(ns_, TokensFrom(9999, 1), {}), 512);
    const std::vector<uint32_t> kept = {0, 1};
    const std::span<const uint32_t> first_blocks(kept.data(), CeilDiv(sinks, 16));
    while (sequence.num_tokens() < kTokens) {
      while (Append(greedy, 1)) {
      }
      const uint32_t position = sequence.num_tokens();
      const RetainedBlocks retained{first_blocks, static_cast<uint32_t>(first_blocks.size()),
                                    (position + 1 - std::min(position, budget - sinks)) / 16, most,
                                    1};
      if (position >= exact && !cache().Retain(sequence, retained)) {
        ASSERT_TRUE(beside) << "round " << round;
        ++waited;
        beside.reset();
        ASSERT_TRUE(cache().Retain(sequence, retained)) << "round " << round;
      }
      const uint32_t rows = position < exact ? exact - position : 1 + below(kRows);
      ASSERT_TRUE(Append(sequence, std::min(rows, kTokens - position))) << "round " << round;
      driver_->Verify(sequence, 7);
      cache().CheckInvariants();
    }
  }
  EXPECT_GT(begun, 60u);
  EXPECT_GT(waited, 10u);
}

}  // namespace
}  // namespace kvasir
