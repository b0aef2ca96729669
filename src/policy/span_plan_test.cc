#include "policy/span_plan.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

SpanPlan PlanOf(const PromptSpans& choice, uint32_t prompt_tokens) {
  auto plan = SpanPlan::Create(choice, prompt_tokens);
  EXPECT_TRUE(plan) << (plan ? "" : plan.error().text());
  return *plan;
}

std::string RefusedBy(const PromptSpans& choice) {
  const auto plan = SpanPlan::Create(choice, 200);
  return plan ? "" : plan.error().text();
}

TEST(SpanPlan, ReadsWhatStandsElsewhereThanItIsComputed) {
  const SpanPlan plan = PlanOf({.spans = {{21, 61}, {61, 98}, {98, 148}}, .seam = 8}, 160);
  EXPECT_EQ(plan.head(), 21u);
  ASSERT_EQ(plan.parts().size(), 2u);  // the first one stands where it is computed
  EXPECT_EQ(plan.inexact_from(), 61u);
  EXPECT_EQ(plan.parts()[0].read_begin, 69u);
  EXPECT_EQ(plan.parts()[1].shift, 77u);
  EXPECT_EQ(plan.TokensOf(plan.parts()[1]), 71u);
  // Exact tokens, the seam, the next seam, and the rest are computed in different steps.
  EXPECT_EQ(plan.RowsFrom(0), 61u);
  EXPECT_EQ(plan.RowsFrom(61), 8u);
  EXPECT_EQ(plan.RowsFrom(69), 0u);
  EXPECT_EQ(plan.RowsFrom(98), 8u);
  EXPECT_GT(plan.RowsFrom(148), 1000u);
  EXPECT_EQ(plan.NumBefore(97), 0u);
  EXPECT_EQ(plan.NumBefore(98), 1u);
  EXPECT_EQ(plan.NumBefore(160), 2u);
  EXPECT_EQ(plan.ReadBefore(69), 0u);
  EXPECT_EQ(plan.ReadBefore(80), 11u);
  EXPECT_EQ(plan.ReadBefore(160), 29u + 42u);
  // Blocks [80, 96) and [112, 144).
  EXPECT_EQ(plan.BlocksNotWritten(16), 1u + 2u);
  EXPECT_EQ(plan.BlocksOf(plan.parts()[0], 16), 4u - 1 + 1);
}

TEST(SpanPlan, ShortSpansAndWholeSeamsAreOrdinaryText) {
  EXPECT_TRUE(PlanOf({.spans = {{10, 41}, {50, 81}}, .seam = 0, .head = 1}, 100).parts().empty());
  EXPECT_TRUE(PlanOf({.spans = {{10, 42}}, .seam = 32, .head = 1}, 100).parts().empty());
  EXPECT_EQ(PlanOf({.spans = {{10, 43}}, .seam = 32, .head = 1}, 100).parts().size(), 1u);
  const SpanPlan last = PlanOf({.spans = {{10, 50}}, .seam = 0, .head = 0}, 50);
  EXPECT_EQ(last.parts().at(0).read_end, 49u);
  EXPECT_TRUE(PlanOf({}, 5).parts().empty());
  EXPECT_FALSE(PlanOf({}, 5).IsInexact(4));
}

TEST(SpanPlan, RefusesByName) {
  EXPECT_EQ(RefusedBy({.spans = {{9, 9}}}), "spans[0]: [9, 9] is empty or runs backwards");
  EXPECT_EQ(RefusedBy({.spans = {{0, 5}, {4, 9}}}),
            "spans[1]: [4, 9] begins before the end of the span before it, 5");
  EXPECT_EQ(RefusedBy({.spans = {{0, 201}}}),
            "spans[0]: [0, 201] ends after the prompt, which has 200 tokens");
  EXPECT_EQ(RefusedBy({.spans = {{5, 9}}, .head = 6}),
            "span_head: 6 is not in [0, 5], up to the first span");
  EXPECT_EQ(RefusedBy({.spans = {{5, 9}}, .seam = 257}), "seam: 257 is not in [0, 256]");
  EXPECT_EQ(RefusedBy({.spans = std::vector<PromptSpan>(65)}),
            "spans: 65 spans; a prompt has at most 64");
}

TEST(SpanPlan, ListsAreRead) {
  EXPECT_EQ(*ParsePromptSpans("21:61,61:98"), (std::vector<PromptSpan>{{21, 61}, {61, 98}}));
  for (const char* text :
       {"", "5", "5:", ":5", "5:9,", "5:9;1:2", "5:9 ", "-1:3", "a:b", "5:99999999999"}) {
    EXPECT_FALSE(ParsePromptSpans(text)) << text;
  }
}

}  // namespace
}  // namespace kvasir
