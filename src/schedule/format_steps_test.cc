#include "schedule/format_steps.h"

#include <gtest/gtest.h>

#include "grammar/grammar_text.h"
#include "grammar/token_masks.h"
#include "schedule/request_queues.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kBudget = 1200;
constexpr uint32_t kParallelRows = 3;

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
        steps_(kBudget, kParallelRows) {
    tenants_.SetRules({{"a", {.weight = 1}}, {"b", {.weight = 2}}});
  }

  // Adds a running request with so many choices, each of which waits for its legal tokens.
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
  steps_.Share(requests_.running, tenants_);
  EXPECT_EQ(steps_.of_rows()[a], kBudget / 3.0);
  EXPECT_EQ(steps_.of_rows()[b], kBudget * 2 / 3.0 / 4);
  EXPECT_EQ(steps_.of_rows()[0], 0);
}

TEST_F(FormatStepsTest, DraftsTakeAPartOfTheSameBudget) {
  const uint32_t a = Run("a", 1).tenant, b = Run("b", 4).tenant;
  EXPECT_EQ(steps_.of_known_draft(), kBudget / 4 / kParallelRows) << "whatever runs";
  steps_.Take(kBudget / 4);  // such drafts of all rows
  steps_.ShareWithDrafts(tenants_);
  EXPECT_EQ(steps_.of_rows()[a], kBudget * 3 / 8 / kParallelRows) << "whatever runs";
  EXPECT_EQ(steps_.of_rows()[b], steps_.of_rows()[a]);
  steps_.Take(450);
  steps_.Share(requests_.running, tenants_);
  EXPECT_EQ(steps_.of_rows()[a], 450 / 3.0) << "the rows have what is left";
  EXPECT_EQ(steps_.of_rows()[b], 450 * 2 / 3.0 / 4);
  steps_.Take(450);
  EXPECT_EQ(steps_.left(), 0u);
  steps_.Begin();
  EXPECT_EQ(steps_.left(), kBudget);
}

// A draft that needs so much is not worth it.
TEST_F(FormatStepsTest, ADraftMayNotTakeAllOfALargeBudget) {
  const uint32_t a = Run("a", 1).tenant;
  FormatSteps large(400'000, kParallelRows);
  EXPECT_EQ(large.of_known_draft(), 4096u);
  large.ShareWithDrafts(tenants_);
  EXPECT_EQ(large.of_rows()[a], 16'384);
}

TEST_F(FormatStepsTest, EachRowThatWaitsGetsOnEvenIfNothingIsLeft) {
  Request& request = Run("a", 2);
  steps_.Share(requests_.running, tenants_);
  steps_.Take(kBudget + 1);  // rows of the step took it all
  EXPECT_TRUE(steps_.Continue(requests_.running, tenants_, /*has_rows=*/true));
  EXPECT_GE(request.answer.format_steps, 2u);
  EXPECT_LT(request.answer.format_steps, 20u);
}

TEST_F(FormatStepsTest, RowsGoOnUntilTheirTokensAreKnown) {
  Request& request = Run("a", 2);
  const uint32_t other = tenants_.NumberOf("b", requests_);
  uint32_t rounds = 0;
  while (steps_.Continue(requests_.running, tenants_, /*has_rows=*/false))
    ASSERT_LT(++rounds, 1000u);
  EXPECT_GT(rounds, 0u);
  EXPECT_GT(stats_[request.tenant].service_ns, 0) << "the time is the tenant's";
  EXPECT_GT(tenants_.views()[request.tenant].charge_ns, 0);
  EXPECT_EQ(stats_[other].service_ns, 0);
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
