#include "policy/retention_policy.h"

#include <gtest/gtest.h>

#include <string>

namespace kvasir {
namespace {

RetentionPolicy Policy(const RetentionChoice& choice, uint32_t prompt = 100,
                       uint32_t ctx_size = 2048) {
  auto policy = RetentionPolicy::Create(choice, {.ctx_size = ctx_size, .prompt_tokens = prompt});
  EXPECT_TRUE(policy) << policy.error().text();
  return *policy;
}

std::string ErrorOf(const RetentionChoice& choice, uint32_t ctx_size = 2048) {
  const auto policy = RetentionPolicy::Create(choice, {.ctx_size = ctx_size, .prompt_tokens = 100});
  return policy ? "" : policy.error().text();
}

std::string ParseErrorOf(const std::string& text) {
  const auto choice = ParseRetentionChoice(text);
  return choice ? "" : choice.error().text();
}

TEST(RetentionPolicy, ReadsWhatAFlagSays) {
  EXPECT_EQ(*ParseRetentionChoice("full"), RetentionChoice{});
  EXPECT_EQ(*ParseRetentionChoice("window"), (RetentionChoice{.policy = Retention::kWindow}));
  EXPECT_EQ(*ParseRetentionChoice("sinks+window:budget=1024,sinks=4"),
            (RetentionChoice{.policy = Retention::kSinksWindow, .budget = 1024, .sinks = 4}));
  EXPECT_EQ(
      *ParseRetentionChoice("sinks+window:budget=context,keep=-1"),
      (RetentionChoice{.policy = Retention::kSinksWindow, .keeps_context = true, .keep = -1}));
  EXPECT_NE(ParseErrorOf("sinks+window:keep=-2"), "");
  EXPECT_NE(ParseErrorOf("sinks+window:keep"), "");
  EXPECT_EQ(ParseErrorOf("x"), "retention: unknown policy 'x' (known: full, window, sinks+window)");
  for (const char* wrong : {"", "Window", "window,budget=3"}) EXPECT_NE(ParseErrorOf(wrong), "");
  for (const char* wrong :
       {"window:budget", "window:budget=3,x=1", "window:=3", "window:budget=,"}) {
    EXPECT_NE(ParseErrorOf(wrong), "") << wrong;
  }
  EXPECT_EQ(ParseErrorOf("window:budget=-1"), "retention: budget=-1 is not a number of tokens");
  EXPECT_EQ(ParseErrorOf("window:budget=4294967296"),
            "retention: budget=4294967296 is not a number of tokens");
}

TEST(RetentionPolicy, HasTheDefaultsThatTheDocsSay) {
  const RetentionPolicy window = Policy({.policy = Retention::kWindow});
  EXPECT_EQ(window.budget(), 1024u);
  EXPECT_EQ(window.sinks(), 0u);
  EXPECT_EQ(window.exact_tokens(), 100u);
  EXPECT_EQ(window.inexact_from(), 1024u);
  const RetentionPolicy sinks = Policy({.policy = Retention::kSinksWindow}, 5000, 131072);
  EXPECT_EQ(sinks.budget(), 2048u);
  EXPECT_EQ(sinks.sinks(), 4u);
  EXPECT_EQ(sinks.inexact_from(), 5000u);
  EXPECT_EQ(sinks.window(), 2044u);
  EXPECT_EQ(sinks.sink_query_position(), 2047u);
  EXPECT_EQ(Policy({.policy = Retention::kWindow}, 1, 20).budget(), 16u);
}

TEST(RetentionPolicy, NamesTheNumberThatIsWrong) {
  EXPECT_EQ(ErrorOf({.policy = Retention::kWindow, .budget = 15}),
            "retention.budget: 15 is not in [16, 2048], up to the context");
  EXPECT_NE(ErrorOf({.policy = Retention::kWindow, .budget = 2049}), "");
  EXPECT_EQ(ErrorOf({.policy = Retention::kWindow, .budget = 2048}), "");
  EXPECT_EQ(ErrorOf({.policy = Retention::kSinksWindow, .budget = 64, .sinks = 33}),
            "retention.sinks: 33 is not in [0, 32], up to half of the budget");
  EXPECT_NE(ErrorOf({.policy = Retention::kWindow, .sinks = 1}), "");
  EXPECT_NE(ErrorOf({.policy = Retention::kWindow, .exact_tokens = 2049}), "");
  EXPECT_NE(ErrorOf({.policy = Retention::kWindow}, 15), "");
}

// Each token sees as many as the budget from the first inexact one on, and all before that.
TEST(RetentionPolicy, SaysWhatATokenSees) {
  for (const uint32_t exact : {0u, 70u, 100u}) {
    const RetentionPolicy policy = Policy(
        {.policy = Retention::kSinksWindow, .budget = 64, .sinks = 5, .exact_tokens = exact});
    for (uint32_t position = 0; position < 200; ++position) {
      const uint32_t first = policy.FirstSeen(position);
      const bool sees_all = position < exact || position < 64;
      EXPECT_EQ(policy.IsInexact(position), !sees_all);
      EXPECT_EQ(first, sees_all ? 0 : position - 58);
      EXPECT_EQ(sees_all ? position + 1 : 5 + position + 1 - first,
                sees_all ? position + 1 : policy.budget());
      // A step's rows are all exact, or none is, and what they see fits the blocks that are
      // planned.
      const uint32_t rows = policy.RowsFrom(position);
      EXPECT_EQ(policy.IsInexact(position), policy.IsInexact(position + rows - 1));
      if (sees_all) continue;
      for (const uint32_t block : {16u, 32u, 128u}) {
        const uint32_t held = (position + rows - 1) / block - first / block + 1;
        EXPECT_LE((held + (5 + block - 1) / block) * block, policy.MostTokens(block) + block - 1);
      }
    }
  }
}

TEST(RetentionPolicy, KeepsAsManyAsLlamaServerWould) {
  const RetentionChoice choice{.policy = Retention::kSinksWindow, .keeps_context = true, .keep = 7};
  const auto policy = [&](uint32_t keep) {
    return *RetentionPolicy::Create(choice, {.ctx_size = 512, .prompt_tokens = 9, .keep = keep});
  };
  EXPECT_EQ(policy(8).budget(), 512u);
  EXPECT_EQ(policy(8).sinks(), 8u);
  EXPECT_EQ(policy(0).sinks(), 0u);
  EXPECT_EQ(policy(400).sinks(), 256u);
}

TEST(RetentionPolicy, NeverDropsWhereNoLayerSeesAll) {
  const auto policy =
      RetentionPolicy::Create({.policy = Retention::kWindow, .budget = 16},
                              {.ctx_size = 256, .prompt_tokens = 200, .is_dropped = false});
  EXPECT_FALSE(policy->IsInexact(1u << 20));
}

}  // namespace
}  // namespace kvasir
