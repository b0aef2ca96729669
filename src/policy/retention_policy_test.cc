#include "policy/retention_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

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
  EXPECT_EQ(ParseErrorOf("sinks+window:keep=4,sinks=4"),
            "retention: sinks and keep both say which first tokens stay; give one of them");
  EXPECT_EQ(ParseErrorOf("x"),
            "retention: unknown policy 'x' (known: full, window, sinks+window, heavy)");
  EXPECT_EQ(
      *ParseRetentionChoice("heavy:budget=1024,sinks=4,recent=64"),
      (RetentionChoice{.policy = Retention::kHeavy, .budget = 1024, .sinks = 4, .recent = 64}));
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
  EXPECT_EQ(ErrorOf({.policy = Retention::kWindow, .keep = 1}),
            "retention.keep: is for the policies sinks+window and heavy, not for window");
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

TEST(RetentionPolicy, KeepsASystemMessageThatIsShort) {
  const auto sinks = [](uint32_t system_tokens, std::optional<uint32_t> asked = {}) {
    const RetentionChoice choice{.policy = Retention::kSinksWindow, .budget = 256, .sinks = asked};
    return RetentionPolicy::Create(
               choice, {.ctx_size = 512, .prompt_tokens = 9, .system_tokens = system_tokens})
        ->sinks();
  };
  EXPECT_EQ(sinks(0), 4u);
  EXPECT_EQ(sinks(64), 64u);
  EXPECT_EQ(sinks(65), 4u);
  EXPECT_EQ(sinks(30, 7), 7u);
}

RetentionPolicy Heavy(uint32_t budget, uint32_t exact, uint32_t max_positions = 1 << 20) {
  return *RetentionPolicy::Create(
      {.policy = Retention::kHeavy, .budget = budget, .sinks = 20, .exact_tokens = exact},
      {.ctx_size = 2048, .prompt_tokens = exact, .max_positions = max_positions});
}

TEST(RetentionPolicy, HeavyHasItsNumbersAndNamesWrongOnes) {
  const auto defaults = RetentionPolicy::Create({.policy = Retention::kHeavy},
                                                {.ctx_size = 1000, .prompt_tokens = 10});
  EXPECT_EQ(defaults->budget(), 496u);
  EXPECT_EQ(defaults->sinks(), 4u);
  EXPECT_EQ(defaults->recent(), 62u);
  EXPECT_EQ(ErrorOf({.policy = Retention::kHeavy, .budget = 63}),
            "retention.budget: 63 is not a multiple of 16 from 64 to the context of 2048: heavy "
            "keeps whole blocks of 16 tokens");
  for (const uint32_t budget : {0u, 8u, 72u, 2049u, 2064u}) {
    EXPECT_TRUE(ErrorOf({.policy = Retention::kHeavy, .budget = budget})
                    .ends_with("is not a multiple of 16 from 64 to the context of 2048: heavy "
                               "keeps whole blocks of 16 tokens"));
  }
  EXPECT_NE(ErrorOf({.policy = Retention::kHeavy, .budget = 64, .recent = 15}), "");
  EXPECT_NE(ErrorOf({.policy = Retention::kHeavy, .budget = 64, .sinks = 33}), "");
  EXPECT_EQ(ErrorOf({.policy = Retention::kWindow, .recent = 16}),
            "retention.recent: is for the policy heavy, not for window");
}

// Decision points are the end of the exact tokens, then each multiple of 64 that is at least 32
// later; the first that drops has more than the budget before it.
TEST(RetentionPolicy, HeavyDecidesAtTheSamePlacesWhateverASequenceDid) {
  for (const uint32_t exact : {0u, 20u, 60u, 64u, 100u, 127u, 128u, 150u, 161u, 200u}) {
    const RetentionPolicy policy = Heavy(96, exact);
    std::vector<uint32_t> points = {exact};
    for (uint32_t at = 1; at < 600; ++at) {
      if (at % 64 == 0 && at >= points.back() + 32) points.push_back(at);
    }
    std::erase_if(points, [](uint32_t at) { return at <= 96; });
    EXPECT_EQ(policy.inexact_from(), points.front());
    EXPECT_EQ(policy.match_end(), points.front() - 32);
    for (uint32_t position = 0; position + 64 < 600; ++position) {
      const uint32_t next = *std::ranges::upper_bound(points, position);
      EXPECT_EQ(policy.NextDecision(position), next);
      EXPECT_EQ(policy.IsDecision(position), std::ranges::count(points, position) > 0);
      EXPECT_EQ(policy.IsScored(position), position + 32 >= next);
      EXPECT_LE(position + policy.RowsFrom(position), next);
      const uint32_t drafts = policy.DraftEnd(position) - position - 1;
      EXPECT_EQ(drafts, position + 33 >= next ? 0 : next - 32 - position - 1);
    }
  }
}

TEST(RetentionPolicy, HeavyKeepsTheBestBlocksThatFit) {
  const RetentionPolicy policy = Heavy(96, 0);
  EXPECT_EQ(policy.inexact_from(), 128u);
  std::vector<RetentionPolicy::HeldBlock> held;
  for (uint32_t block = 0; block < 8; ++block) held.push_back({block, 0});
  held[4].sum = 2;
  held[6].sum = 1;
  EXPECT_TRUE(policy.Decide(128, held));
  const auto kept = [&] {
    std::vector<uint32_t> blocks;
    for (const auto& one : held) {
      if (one.stays) blocks.push_back(one.block);
    }
    return blocks;
  };
  // Sinks 0 and 1, the last one 7; 4 has most; of 3 and 6, both 1, and 5, 1.5 for what is beside
  // it.
  EXPECT_EQ(kept(), (std::vector<uint32_t>{0, 1, 4, 5, 6, 7}));
  EXPECT_EQ(held[3].score, 1.0f);
  EXPECT_EQ(held[5].score, 1.5f);
  for (auto& one : held) one.sum = 1;
  EXPECT_TRUE(policy.Decide(128, held));
  EXPECT_EQ(kept(), (std::vector<uint32_t>{0, 1, 4, 5, 6, 7}));  // of equal ones the later
  held.erase(held.begin() + 2, held.begin() + 4);
  EXPECT_FALSE(policy.Decide(192, held));
}

TEST(RetentionPolicy, HeavyDropsWhatIsFartherThanTheModelWasTrainedFor) {
  const RetentionPolicy policy = Heavy(256, 0, 256);
  std::vector<RetentionPolicy::HeldBlock> held;
  for (uint32_t block = 0; block < 20; ++block) held.push_back({block, 20.0f - block});
  EXPECT_TRUE(policy.Decide(320, held));
  for (const auto& one : held) EXPECT_EQ(one.stays, one.block < 2 || one.block >= 8) << one.block;
  EXPECT_FALSE(policy.SinkPosition(255));
  EXPECT_EQ(policy.SinkPosition(256), 255u);
  EXPECT_EQ(policy.RowsFrom(255), 320u - 255u);
  EXPECT_EQ(Heavy(64, 0, 256).RowsFrom(250), 6u);  // the sinks are asked from one place in a step
}

TEST(RetentionPolicy, NeverDropsWhereNoLayerSeesAll) {
  const auto policy =
      RetentionPolicy::Create({.policy = Retention::kWindow, .budget = 16},
                              {.ctx_size = 256, .prompt_tokens = 200, .is_dropped = false});
  EXPECT_FALSE(policy->IsInexact(1u << 20));
}

}  // namespace
}  // namespace kvasir
