#include "schedule/format_steps.h"

#include <gtest/gtest.h>

#include "grammar/grammar_text.h"
#include "grammar/token_masks.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kBudget = 1200;

class FormatStepsTest : public testing::Test {
 protected:
  FormatStepsTest()
      : runner_(SmallRunnerOptions()),
        cache_(SmallCache(runner_)),
        stats_(1),
        tenants_(*cache_, stats_, 2, 10),
        rows_(8, FakeRunner::kHidden, kSmallVocab),
        grammar_(*CompileGrammarText(FormatLanguage::kGbnf, "root ::= [a-z]+")),
        masks_(std::make_shared<const TokenTrie>(std::vector<std::string>(kSmallVocab, "ab"),
                                                 std::vector<TokenId>()),
               1 << 20),
        steps_(kBudget) {
    tenants_.SetRules({{"a", {.weight = 1}}, {"b", {.weight = 2}}});
  }

  // A running request with so many choices, each of which waits for its legal tokens.
  Request& Run(const char* tenant, uint32_t choices) {
    auto& request = requests_.running.emplace_back(std::make_unique<Request>());
    request->tenant = tenants_.NumberOf(tenant, requests_);
    for (uint32_t i = 0; i < choices; ++i) {
      auto& sequence = request->answer.sequences.emplace_back(std::make_unique<Sequence>());
      sequence->format.emplace(grammar_);
      sequence->format_choice = std::make_unique<FormatChoice>(
          *sequence->format, std::span<const TokenId>(), masks_, rows_.Take());
      WalkSteps none(0);
      EXPECT_TRUE(sequence->format_choice->Legal(none).empty());
    }
    return *request;
  }

  const FakeRunner runner_;
  const std::unique_ptr<KvCache> cache_;
  std::vector<TenantStats> stats_;
  TenantBook tenants_;
  HeldRows rows_;
  const std::shared_ptr<const Grammar> grammar_;
  TokenMasks masks_;
  RequestQueues requests_;
  FormatSteps steps_;
};

TEST_F(FormatStepsTest, TenantsShareByWeightAndTheirRowsEqually) {
  const uint32_t a = Run("a", 1).tenant, b = Run("b", 4).tenant;
  steps_.Share(requests_, tenants_);
  EXPECT_EQ(steps_.of_rows()[a], kBudget / 3.0);
  EXPECT_EQ(steps_.of_rows()[b], kBudget * 2 / 3.0 / 4);
  EXPECT_EQ(steps_.of_rows()[0], 0);
}

TEST_F(FormatStepsTest, EachRowThatWaitsGetsOnEvenIfNothingIsLeft) {
  Request& request = Run("a", 2);
  steps_.Share(requests_, tenants_);
  steps_.Take(kBudget + 1);  // rows of the step took it all
  EXPECT_TRUE(steps_.Continue(requests_, tenants_, /*has_rows=*/true));
  EXPECT_GE(request.answer.format_steps, 2u);
  EXPECT_LT(request.answer.format_steps, 20u);
}

TEST_F(FormatStepsTest, RowsGoOnUntilTheirTokensAreKnown) {
  Request& request = Run("a", 2);
  uint32_t rounds = 0;
  while (steps_.Continue(requests_, tenants_, /*has_rows=*/false)) ASSERT_LT(++rounds, 1000u);
  EXPECT_GT(rounds, 0u);
  for (const auto& sequence : request.answer.sequences) {
    EXPECT_FALSE(sequence->waits_for_format());
    WalkSteps none(0);
    EXPECT_FALSE(sequence->format_choice->Legal(none).empty());
  }
}

TEST_F(FormatStepsTest, ARequestMayNotWalkForEver) {
  Request& request = Run("a", 1);
  request.spec.format.emplace();
  EXPECT_FALSE(FormatSteps::ErrorOf(request));
  request.answer.format_steps = 3'000'000'000;
  ASSERT_TRUE(FormatSteps::ErrorOf(request));
  EXPECT_EQ(FormatSteps::ErrorOf(request)->code, Code::kInvalidArgument);
  EXPECT_EQ(FormatSteps::ErrorOf(request)->field, "tools");
}

}  // namespace
}  // namespace kvasir
