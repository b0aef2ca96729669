#include "schedule/drafter.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "grammar/grammar_text.h"
#include "grammar/token_masks.h"
#include "schedule/request_answer.h"
#include "schedule/step_figures.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

using DraftIds = std::vector<TokenId>;

constexpr TokenId kDraftEnd = 63;

// Requests of tenant alice, whose cache has seen a text.
class DrafterTest : public testing::Test {
 protected:
  DrafterTest()
      : runner_(SmallRunnerOptions()),
        cache_(*KvCache::Create({.layout = runner_.layout(),
                                 .budget_bytes = 1 << 24,
                                 .hidden_size = FakeRunner::kHidden,
                                 .num_cursors = 4,
                                 .max_blocks = 64,
                                 .secret = {},
                                 .step_tokens = 64,
                                 .continues = true})),
        chooser_(runner_, 4, ends_),
        tenants_(*cache_, figures_.stats().tenants, 4, 10),
        drafter_(options_, *cache_, chooser_, tenants_, format_steps_) {}

  // Enters a text into the namespace of an owner.
  void Remember(const char* owner, const DraftIds& text) {
    KvSequence kv = cache_->Fetch(cache_->Match(cache_->EnterNamespace(owner, {}), text, {}), 64);
    const std::span<const TokenId> rest = std::span(text).subspan(kv.num_committed());
    ASSERT_TRUE(cache_->Extend(kv, rest));
    cache_->Commit(kv, static_cast<uint32_t>(rest.size()), KvCache::CommitKind::kEnd);
  }
  // Returns what is drafted after prompt and answer.
  const Draft& Fill(const DraftIds& prompt, const DraftIds& answer) {
    request_.spec.prompt = prompt;
    request_.max_tokens = max_tokens_;
    request_.room.draft_tokens = draft_tokens_;
    request_.answer.sequences.clear();
    sequence_ = &AddSequence(
        request_, cache_->Fetch(cache_->Match(cache_->EnterNamespace("alice", {}), prompt, {}), 99),
        nullptr);
    sequence_->tokens.insert(sequence_->tokens.end(), answer.begin(), answer.end());
    if (format_) {
      request_.format = {.whole = format_, .closing = nullptr, .masks = &masks_};
      sequence_->BeginFormat(format_);
    }
    drafter_.Fill(request_, *sequence_);
    return sequence_->draft;
  }
  static DraftIds IdsOf(const Draft& draft) { return {draft.all().begin(), draft.all().end()}; }

  const std::vector<TokenId> ends_ = {kDraftEnd};
  SchedulerOptions options_{.num_tenants = 4, .speculate = Speculate::kAlways, .draft_max = 6};
  FakeRunner runner_;
  const std::unique_ptr<KvCache> cache_;
  TokenChooser chooser_;
  StepFigures figures_{0};
  TenantBook tenants_;
  FormatSteps format_steps_{400'000, 4};
  Drafter drafter_;
  std::shared_ptr<const Grammar> format_;
  TokenMasks masks_{std::make_shared<const TokenTrie>(std::vector<std::string>(kSmallVocab, "ab"),
                                                      std::vector<TokenId>()),
                    1 << 20};
  Request request_;
  Sequence* sequence_ = nullptr;
  uint32_t max_tokens_ = 64, draft_tokens_ = 99;
};

DraftIds Rising(TokenId first, uint32_t count) {
  DraftIds ids(count);
  for (uint32_t i = 0; i < count; ++i) ids[i] = first + static_cast<TokenId>(i);
  return ids;
}

TEST_F(DrafterTest, DraftsWhatTheNamespaceHasSeen) {
  Remember("alice", Rising(10, 32));
  EXPECT_EQ(IdsOf(Fill({1, 2}, Rising(12, 10))), Rising(22, 6));
  EXPECT_EQ(sequence_->draft.source, DraftSource::kMemory);
  EXPECT_EQ(sequence_->draft.num_equal, 10u);
  EXPECT_EQ(IdsOf(Fill({1, 2}, {5, 20, 21})), Rising(22, 6)) << "two tokens are enough";
  EXPECT_TRUE(IdsOf(Fill({1, 2}, {20, 5, 22})).empty());
}

TEST_F(DrafterTest, DraftsNothingOfOthers) {
  Remember("bob", Rising(10, 32));
  EXPECT_TRUE(IdsOf(Fill({1, 2}, Rising(12, 10))).empty());
}

TEST_F(DrafterTest, DraftsNothingThatWasForgotten) {
  Remember("alice", Rising(10, 32));
  cache_->Forget("alice");
  EXPECT_TRUE(IdsOf(Fill({1, 2}, Rising(12, 10))).empty());
}

TEST_F(DrafterTest, AnAnswerThatSharesNothingRepeatsItselfAlone) {
  Remember("alice", Rising(10, 32));
  request_.spec.reuse = Reuse::kNothing;
  EXPECT_TRUE(IdsOf(Fill({1, 2}, Rising(12, 10))).empty());
  EXPECT_EQ(IdsOf(Fill({1, 2, 3, 4, 5}, {7, 2, 3})), (DraftIds{4, 5, 7, 2, 3, 4}));
  EXPECT_EQ(IdsOf(Fill({1}, {9, 9, 9})), DraftIds(6, 9)) << "beyond the end it goes on repeating";
}

TEST_F(DrafterTest, EndsWithItsRoomTheAnswerAndAnEndToken) {
  Remember("alice", Rising(10, 32));
  draft_tokens_ = 15;
  EXPECT_EQ(Fill({1, 2}, Rising(12, 10)).num_tokens, 3u);
  draft_tokens_ = 99;
  max_tokens_ = 12;
  EXPECT_EQ(Fill({1, 2}, Rising(12, 10)).num_tokens, 1u) << "the last token needs no row";
  max_tokens_ = 64;
  request_.spec.draft_max = 2;
  EXPECT_EQ(Fill({1, 2}, Rising(12, 10)).num_tokens, 2u);
  request_.spec.draft_max = 0;
  EXPECT_EQ(Fill({1, 2}, Rising(12, 10)).num_tokens, 0u);
  request_.spec.draft_max.reset();
  Remember("alice", {40, 41, 42, kDraftEnd, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55});
  EXPECT_EQ(IdsOf(Fill({1, 2}, {40, 41})), DraftIds{42});
}

TEST_F(DrafterTest, EndsWhereTheRotationChanges) {
  Remember("alice", Rising(10, 32));
  options_.long_rope = {14, Identity{9}};
  EXPECT_EQ(Fill({1, 2}, Rising(12, 10)).num_tokens, 2u);
  request_.spec.n = 2;
  EXPECT_EQ(Fill({1, 2}, Rising(12, 10)).num_tokens, 0u);
}

TEST_F(DrafterTest, DraftsNothingForBeamsAndWithoutACache) {
  Remember("alice", Rising(10, 32));
  request_.spec.beams.emplace();
  EXPECT_EQ(drafter_.LongestDraft(request_.spec), 0u);
  EXPECT_EQ(Fill({1, 2}, Rising(12, 10)).num_tokens, 0u);
  request_.spec.beams.reset();
  EXPECT_EQ(Fill({1, 2}, Rising(12, 10)).num_tokens, 6u);
  options_.cache_mode = CacheMode::kNone;
  EXPECT_EQ(drafter_.LongestDraft(request_.spec), 0u);
  EXPECT_EQ(Fill({1, 2}, Rising(12, 10)).num_tokens, 0u);
}

TEST_F(DrafterTest, TakesWhatItWalksOfAFormatFromTheBudgetOfTheStep) {
  Remember("alice", Rising(10, 32));
  format_ = *CompileGrammarText(FormatLanguage::kGbnf, "root ::= \"abababab\" [x-z]");
  const uint64_t before = format_steps_.left();
  EXPECT_EQ(Fill({1, 2}, Rising(12, 10)).num_tokens, 4u) << "the format forbids the next";
  EXPECT_LT(format_steps_.left(), before);
  format_ = *CompileGrammarText(FormatLanguage::kGbnf, "root ::= [a-z]+");
  EXPECT_EQ(Fill({1, 2}, Rising(12, 10)).num_tokens, 6u);
  // A quarter of the budget is for the drafts of 4 rows: 20 steps each.
  FormatSteps few(4 * 4 * 20, 4), none(0, 4);
  Drafter(options_, *cache_, chooser_, tenants_, few).Fill(request_, *sequence_);
  EXPECT_LT(sequence_->draft.num_tokens, 6u);
  EXPECT_LE(4 * 4 * 20 - few.left(), 40u) << "the last byte may need more than is left";
  Drafter(options_, *cache_, chooser_, tenants_, none).Fill(request_, *sequence_);
  EXPECT_EQ(sequence_->draft.num_tokens, 0u);
}

TEST_F(DrafterTest, APredictionIsDraftedFromItsBeginningThenAfterItsLongestMatch) {
  request_.spec.prediction = Rising(20, 12);
  EXPECT_EQ(IdsOf(Fill({1, 2}, {20})), Rising(21, 6));
  EXPECT_EQ(sequence_->draft.source, DraftSource::kPrediction);
  EXPECT_TRUE(IdsOf(Fill({1, 2}, {20, 5})).empty()) << "it left the beginning";
  EXPECT_EQ(IdsOf(Fill({1, 2}, {20, 5, 24, 25})), Rising(26, 6));
  EXPECT_EQ(IdsOf(Fill({1, 2}, {5, 30, 29, 30})), DraftIds{31}) << "to its end";
}

TEST_F(DrafterTest, AMemoryWithALongerMatchGoesBeforeAPrediction) {
  Remember("alice", Rising(10, 32));
  request_.spec.prediction = {1, 18, 19, 20, 5, 6};
  const Draft& draft = Fill({1, 2}, Rising(12, 9));
  EXPECT_EQ(draft.source, DraftSource::kMemory);
  EXPECT_EQ(IdsOf(draft), Rising(21, 6));
  EXPECT_EQ(Fill({1, 2}, {7, 18, 19, 20}).source, DraftSource::kPrediction) << "as long a match";
}

TEST_F(DrafterTest, CountsByRequestAndTenant) {
  Remember("alice", Rising(10, 32));
  request_.tenant = 1;
  Fill({1, 2}, Rising(12, 10));
  const double before = drafter_.Chance(request_, *sequence_);
  for (int i = 0; i < 30; ++i) drafter_.Count(request_, sequence_->draft, 6, 0);
  EXPECT_LT(drafter_.Chance(request_, *sequence_), before / 4);
  Request other;
  other.tenant = 1;
  EXPECT_LT(drafter_.Chance(other, *sequence_), before / 2) << "the tenant's mean";
  other.tenant = 2;
  EXPECT_DOUBLE_EQ(drafter_.Chance(other, *sequence_), before) << "another tenant's";
}

}  // namespace
}  // namespace kvasir
