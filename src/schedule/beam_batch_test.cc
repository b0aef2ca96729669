#include "schedule/beam_batch.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cache/cache_driver_for_test.h"
#include "schedule/request_answer.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

constexpr TokenId kBeamStart = 1, kBeamEnd = 2;
constexpr uint32_t kBeamRows = 8;

// Requests with two beams, on the cache of a model with an encoder.
class BeamBatchTest : public testing::Test {
 protected:
  BeamBatchTest()
      : runner_(SmallRunnerOptions()),
        cache_(*KvCache::Create(
            OptionsFor(64, 4, &DefaultEvictionChoice(), LayoutOf({0, kCrossLayer})))),
        batch_(runner_, *cache_, BestTarget(), kBeamRows) {}

  // Makes a request whose start token is computed.
  std::unique_ptr<Request> Ask(uint32_t max_tokens) {
    auto request = std::make_unique<Request>();
    request->spec.prompt = {kBeamStart};
    request->spec.source = {5, 6};
    request->spec.beams = BeamParams{.beams = 2};
    request->max_tokens = max_tokens;
    BeamBatch::BeginSearch(*request, std::vector<TokenId>{kBeamEnd});
    MatchOptions options;
    options.source = {request->spec.source, 2};
    MatchResult match =
        cache_->Match(cache_->EnterNamespace("a", {}), request->spec.prompt, options);
    request->room.reservation = *cache_->Reserve(match, {.prompt_tokens = 1,
                                                         .tokens = 1 + max_tokens,
                                                         .n = 2,
                                                         .shares_prompt = true,
                                                         .source_tokens = 2});
    KvSequence kv = cache_->Fetch(std::move(match), 1 + max_tokens, request->room.reservation);
    if (!kv.has_source()) {
      KV_CHECK(cache_->ExtendSource(kv));
      cache_->CommitSource(kv);
    }
    KV_CHECK(cache_->Extend(kv, request->spec.prompt));
    cache_->Commit(kv, 1, KvCache::CommitKind::kRunning);
    kv.StopPublishing();
    AddSequence(*request, std::move(kv), nullptr);
    return request;
  }
  // Returns logits whose best tokens are these, in this order.
  static std::vector<float> Logits(std::initializer_list<std::vector<TokenId>> rows) {
    std::vector<float> logits;
    for (const std::vector<TokenId>& best : rows) {
      std::vector<float> row(kSmallVocab, -30);
      for (size_t i = 0; i < best.size(); ++i) row[static_cast<size_t>(best[i])] = 5 - 0.1f * i;
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return logits;
  }

  FakeRunner runner_;
  const std::unique_ptr<KvCache> cache_;
  BeamBatch batch_;
};

TEST_F(BeamBatchTest, RowsOfARequestAreOneStep) {
  const auto a = Ask(4), b = Ask(4);
  batch_.Clear();
  batch_.Add(*a, 0);
  batch_.Add(*b, 2);  // row 1 is another request's
  ASSERT_EQ(batch_.steps().size(), 2u);
  batch_.Run(Logits({{7, 8}, {}, {9, 10}}));
  EXPECT_EQ(a->answer.search->beams()[0].token, 7);
  EXPECT_EQ(a->answer.search->beams()[1].token, 8);
  EXPECT_EQ(b->answer.search->beams()[0].token, 9);
  ASSERT_TRUE(batch_.Follow(*a));
  batch_.Clear();
  batch_.Add(*a, 0);
  batch_.Add(*a, 1);
  ASSERT_EQ(batch_.steps().size(), 1u);
  EXPECT_EQ(batch_.steps()[0].num_rows, 2u);
}

TEST_F(BeamBatchTest, SequencesFollowTheBeamsThatGoOn) {
  const auto request = Ask(4);
  batch_.Add(*request, 0);
  batch_.Run(Logits({{7, 8}}));
  ASSERT_TRUE(batch_.Follow(*request));
  ASSERT_EQ(request->answer.sequences.size(), 2u);
  EXPECT_EQ(request->answer.sequences[0]->tokens, (std::vector<TokenId>{kBeamStart, 7}));
  EXPECT_EQ(request->answer.sequences[1]->tokens, (std::vector<TokenId>{kBeamStart, 8}));
  EXPECT_EQ(request->answer.sequences[1]->kv.num_committed(), 1u) << "a fork of the prompt";
  for (const auto& sequence : request->answer.sequences) {
    ASSERT_TRUE(cache_->Extend(sequence->kv, std::span(sequence->tokens).last(1)));
    cache_->Commit(sequence->kv, 1, KvCache::CommitKind::kRunning);
  }
  // Both beams go on from the second one, and the first one's sequence is used again.
  const Sequence* const first = request->answer.sequences[0].get();
  batch_.Clear();
  batch_.Add(*request, 0);
  batch_.Add(*request, 1);
  std::vector<float> logits = Logits({{}, {11, 12}});
  std::fill_n(logits.begin(), kSmallVocab, 0.0f);  // all of the first one's tokens are unlikely
  batch_.Run(logits);
  ASSERT_TRUE(batch_.Follow(*request));
  EXPECT_EQ(request->answer.sequences[0]->tokens, (std::vector<TokenId>{kBeamStart, 8, 11}));
  EXPECT_EQ(request->answer.sequences[1]->tokens, (std::vector<TokenId>{kBeamStart, 8, 12}));
  EXPECT_EQ(request->answer.sequences[1].get(), first);
  EXPECT_EQ(request->answer.sequences[1]->kv.tokens()[1], 8);
}

TEST_F(BeamBatchTest, SaysThatALogitIsNotFinite) {
  const auto request = Ask(4);
  batch_.Add(*request, 0);
  std::vector<float> logits = Logits({{7, 8}});
  logits[20] = std::nanf("");
  batch_.Run(logits);
  EXPECT_FALSE(batch_.steps()[0].finite);
  EXPECT_EQ(request->answer.search->length(), 0u);
}

TEST_F(BeamBatchTest, AllocatesWhatItPlans) {
  EXPECT_EQ(batch_.bytes(), BeamBatch::BytesFor(kSmallVocab, kBeamRows, /*has_encoder=*/true));
  const auto without = SmallCache(runner_);
  EXPECT_EQ(BeamBatch(runner_, *without, BestTarget(), kBeamRows).bytes(), 0u);
}

}  // namespace
}  // namespace kvasir
