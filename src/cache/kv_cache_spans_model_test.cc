// Random histories of requests with spans in pools of a few blocks, against a naive twin: a list of
// all texts whose parts were computed. What a request has reserved it can take, whatever others do
// meanwhile; every byte that its tokens would read is compared; with room for everything a part
// that was computed before is found whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/rounds_for_test.h"
#include "cache/cache_driver_for_test.h"
#include "policy/span_plan.h"

namespace kvasir {
namespace {

constexpr uint32_t kAnswer = 8;

struct SpanParams {
  uint64_t seed;
  uint32_t num_blocks;
  uint32_t num_layers = 1;
};

class KvSpansModel : public testing::TestWithParam<SpanParams> {
 protected:
  struct Part {
    Tokens text;
    KvSequence kv;
    Reservation reservation;
  };
  struct Running {
    SpanPlan plan;
    Tokens tokens;  // the prompt and its answer
    uint32_t prompt_tokens;
    uint32_t epoch;
    Reservation reservation;
    std::vector<Part> parts;
    KvSequence first;
    size_t num_read = 0;
    bool reads = false;  // its next part is begun
  };

  KvCache& cache() { return *driver_.cache; }
  bool roomy() const { return GetParam().num_blocks > 1000; }
  uint32_t Draw(uint64_t below) { return static_cast<uint32_t>(random_.Below(below)); }

  Tokens Words(uint32_t most) {
    Tokens words(Draw(most));
    for (TokenId& word : words) word = static_cast<TokenId>(Draw(2));
    return words;
  }

  // Draws a prompt of few words, documents and a question.
  std::pair<Tokens, PromptSpans> RandomPrompt() {
    Tokens tokens = Join({1}, Words(40));
    PromptSpans spans;
    spans.seam = Draw(2) * Draw(20);
    if (Draw(2) == 0) spans.head = Draw(tokens.size() + 1);
    for (uint32_t i = 1 + Draw(3); i > 0; --i) {
      const uint32_t document = Draw(4);
      const auto begin = static_cast<uint32_t>(tokens.size());
      tokens = Join(std::move(tokens), TokensFrom(50 + document, 32 + document * 7));
      spans.spans.push_back({begin, static_cast<uint32_t>(tokens.size())});
      tokens = Join(std::move(tokens), Words(3));
    }
    return {Join(std::move(tokens), Words(9)), spans};
  }

  // Starts one as the scheduler admits it: all or nothing.
  void Start() {
    auto [prompt, spans] = RandomPrompt();
    const auto size = static_cast<uint32_t>(prompt.size());
    auto plan = *SpanPlan::Create(spans, size);
    MatchResult match =
        cache().Match(ns_, prompt, {.use_cursor = false, .most_tokens = plan.inexact_from()});
    auto reserved = cache().Reserve(match, {.prompt_tokens = size,
                                            .tokens = size + kAnswer,
                                            .read_blocks = plan.BlocksNotWritten(kBlock)});
    if (!reserved) return;
    Running running{.plan = plan,
                    .tokens = Join(prompt, Tokens(kAnswer, 1)),
                    .prompt_tokens = size,
                    .epoch = epoch_,
                    .reservation = std::move(*reserved)};
    const bool has_head = match.num_reused() >= plan.head() / kBlock * kBlock;
    for (const SpanPlan::Part& part : plan.parts()) {
      Part& made = running.parts.emplace_back(Part{.text = plan.TextOf(part, prompt)});
      const auto tokens = static_cast<uint32_t>(made.text.size());
      if (!has_head) {
        auto after = cache().ReserveAfter(match_account(), plan.head(), tokens);
        if (!after) return;
        made.reservation = std::move(*after);
        continue;
      }
      MatchResult found = cache().Match(ns_, made.text, kOfPart);
      auto of_part = cache().Reserve(found, {.prompt_tokens = tokens, .tokens = tokens});
      if (!of_part) return;
      made.reservation = std::move(*of_part);
      made.kv = cache().Fetch(std::move(found), tokens, made.reservation);
    }
    running.first = cache().Fetch(std::move(match), size + kAnswer, running.reservation);
    running_.push_back(std::move(running));
    ++num_started_;
  }

  AccountId match_account() { return cache().EnterAccount("alice"); }

  // Computes some of the next tokens, at most `most`. It has their blocks.
  void Compute(KvSequence& kv, std::span<const TokenId> tokens, uint32_t most) {
    const auto num = 1 + Draw(most);
    const auto kind = num == most ? KvCache::CommitKind::kEnd : KvCache::CommitKind::kRunning;
    EXPECT_TRUE(driver_.Append(kv, kSalt, tokens.subspan(kv.num_tokens(), num), kind));
  }

  // Begins a part. More of it may be here than was when it started; nothing that is reserved is
  // lost.
  void Begin(Running& running) {
    Part& part = running.parts[running.num_read];
    running.reads = true;
    const auto size = static_cast<uint32_t>(part.text.size());
    const bool has_blocks = !part.kv.tables().empty();
    const uint32_t least = has_blocks ? part.kv.num_committed() : running.plan.head();
    const uint32_t reserved = part.reservation.blocks();
    part.reservation.Lend();
    {
      MatchResult found = cache().Match(ns_, part.text, kOfPart);
      if (roomy() && running.epoch == epoch_ && computed_.contains(part.text)) {
        EXPECT_EQ(found.num_reused(), size);
        ++num_found_;
      }
      if (running.epoch == epoch_ && found.num_reused() >= least && Draw(4) != 0) {
        auto of_part = cache().ReserveLent(found, {.prompt_tokens = size, .tokens = size});
        if (of_part) {
          part.kv = cache().Fetch(std::move(found), size, *of_part);
          part.reservation = std::move(*of_part);
          return;
        }
      }
    }
    part.reservation.EndLoan();
    EXPECT_EQ(part.reservation.blocks(), reserved);
    if (has_blocks) return;
    part.kv = cache().Branch(running.first, running.plan.head(), size, part.reservation);
  }

  // Returns false at its end.
  bool Advance(Running& running) {
    KvSequence& first = running.first;
    const uint32_t p = first.num_committed();
    const auto end = static_cast<uint32_t>(running.tokens.size());
    if (p == end) return false;
    if (!running.plan.IsInexact(p)) {
      Compute(first, running.tokens, std::min(end, running.plan.inexact_from()) - p);
      return true;
    }
    if (first.publishes()) cache().Commit(first, 0, KvCache::CommitKind::kEnd);
    first.StopPublishing();
    if (running.num_read < running.parts.size()) {
      Part& part = running.parts[running.num_read];
      const auto left = [&] {
        return static_cast<uint32_t>(part.text.size()) - part.kv.num_committed();
      };
      if (!running.reads) {
        Begin(running);
      } else if (left() > 0) {
        Compute(part.kv, part.text, left());
      }
      if (left() > 0) return true;
      part.kv.Close();
      cache().Commit(part.kv, 0, KvCache::CommitKind::kEnd);
      if (part.kv.publishes() && running.epoch == epoch_) computed_.insert(part.text);
      part.reservation.Release();
      running.reads = false;
      ++running.num_read;
      return true;
    }
    for (size_t i = 0; i < running.parts.size(); ++i) {
      const SpanPlan::Part& part = running.plan.parts()[i];
      if (p != part.read_begin) continue;
      const auto read = std::span(running.tokens).subspan(p, part.read_tokens());
      EXPECT_TRUE(cache().ReadIn(first, running.parts[i].kv, read, part.shift));
      return true;
    }
    Compute(first, running.tokens, std::min(running.plan.RowsFrom(p), end - p));
    return true;
  }

  // Compares what its tokens read: its own, and those of the parts that it has read.
  void Verify(Running& running) {
    const uint32_t end = running.first.num_committed();
    uint32_t begin = 0;
    for (size_t i = 0; i < running.parts.size(); ++i) {
      const SpanPlan::Part& part = running.plan.parts()[i];
      if (!running.parts[i].kv.tables().empty()) driver_.Verify(running.parts[i].kv, kSalt);
      if (part.read_begin >= end) break;
      driver_.Stamp(running.first, kSalt, begin, part.read_begin, /*check=*/true);
      begin = part.read_end;
    }
    driver_.Stamp(running.first, kSalt, begin, std::max(begin, end), /*check=*/true);
  }

  // Fills the pool with a prompt of others, as far as there is room.
  void FillPool() {
    const Tokens prompt = TokensFrom(Draw(1000), 16 + Draw(60));
    MatchResult match = cache().Match(ns_, prompt, {});
    const uint32_t reused = match.num_reused();
    KvSequence kv = cache().Fetch(std::move(match), static_cast<uint32_t>(prompt.size()));
    driver_.Append(kv, kSalt, std::span(prompt).subspan(reused), KvCache::CommitKind::kEnd);
  }

  void Step() {
    const uint32_t draw = Draw(100);
    if (running_.empty() || (draw < 12 && running_.size() < 5)) return Start();
    if (draw < 20) return FillPool();
    if (draw == 20) {
      for (Running& running : running_) {
        running.first.LeaveIndex();
        for (Part& part : running.parts) part.kv.LeaveIndex();
      }
      cache().Forget(ns_);
      computed_.clear();
      ++epoch_;
      return;
    }
    const size_t i = Draw(running_.size());
    if (Advance(running_[i]) && draw > 22) return;
    num_whole_ += running_[i].first.num_committed() == running_[i].tokens.size();
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
  }

  static constexpr uint32_t kBlock = 16;
  static constexpr uint64_t kSalt = 7;
  static constexpr MatchOptions kOfPart{.use_cursor = false, .computes_last = false};

  Random random_{GetParam().seed};
  CacheDriver driver_{OptionsFor(GetParam().num_blocks * GetParam().num_layers, 16,
                                 &DefaultEvictionChoice(),
                                 LayoutOf(std::vector<uint32_t>(GetParam().num_layers, 0)))};
  const NamespaceId ns_ = driver_.cache->EnterNamespace("alice", IdentityNamed(1));
  std::set<Tokens> computed_;
  std::vector<Running> running_;
  uint32_t epoch_ = 0;
  uint64_t num_started_ = 0, num_whole_ = 0, num_found_ = 0;
};

TEST_P(KvSpansModel, WhatIsReservedCanBeTakenAndReadsRightBytes) {
  for (int step = 0; step < 1500 && !HasFailure(); ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    Step();
    if (step % 8 == 0) cache().ZeroForgotten(1);
    if (!roomy() || step % 16 == 0) cache().CheckInvariants();
    for (Running& running : running_) Verify(running);
  }
  EXPECT_GT(num_started_, 20u);
  EXPECT_GT(num_whole_, 10u);
  EXPECT_EQ(num_found_ > 0, roomy());
}

std::vector<SpanParams> AllSpanParams() {
  std::vector<SpanParams> all;
  for (uint32_t seed = 1; seed <= Rounds(30u, 8u); ++seed) {
    all.push_back({seed, 24 + 4 * (seed % 8), 1 + seed % 2});
  }
  for (uint32_t seed = 101; seed <= Rounds(104u, 101u); ++seed) all.push_back({seed, 4000, 1});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Seeds, KvSpansModel, testing::ValuesIn(AllSpanParams()),
                         [](const auto& info) {
                           return "Seed" + std::to_string(info.param.seed) + "Blocks" +
                                  std::to_string(info.param.num_blocks);
                         });

}  // namespace
}  // namespace kvasir
