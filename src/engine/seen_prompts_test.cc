#include "engine/seen_prompts.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvasir {
namespace {

constexpr uint64_t kMany = uint64_t{1} << 30;  // tokens

std::vector<TokenId> Prompt(uint32_t tokens, TokenId first = 0) {
  std::vector<TokenId> prompt(tokens);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

TEST(SeenPrompts, FindsWholeChunksAndWholePromptsOfOneOwner) {
  SeenPrompts seen(kMany);
  const auto tokens = [&](std::string_view owner, std::string_view salt,
                          const std::vector<TokenId>& prompt) {
    return seen.SeenTokens(SeenPrompts::Of(owner, salt, prompt));
  };
  EXPECT_EQ(tokens("a", "", Prompt(300)), 0u);
  seen.Add(SeenPrompts::Of("a", "", Prompt(300)));
  EXPECT_EQ(tokens("a", "", Prompt(300)), 300u);
  EXPECT_EQ(tokens("a", "", Prompt(1000)), 288u);
  EXPECT_EQ(tokens("a", "", Prompt(15)), 0u);
  EXPECT_EQ(tokens("a", "", Prompt(40)), 32u);
  EXPECT_EQ(tokens("a", "", {}), 0u);
  EXPECT_EQ(tokens("a", "", Prompt(300, 1)), 0u);
  EXPECT_EQ(tokens("b", "", Prompt(300)), 0u);
  EXPECT_EQ(tokens("a", "x", Prompt(300)), 0u);
  std::vector<TokenId> edited = Prompt(300);
  edited[130] = 7;
  EXPECT_EQ(tokens("a", "", edited), 128u);
  seen.Add(SeenPrompts::Of("b", "", Prompt(300)));
  seen.Forget("a");
  EXPECT_EQ(tokens("a", "", Prompt(300)), 0u);
  EXPECT_EQ(tokens("b", "", Prompt(300)), 300u);
  seen.Add(SeenPrompts::Of("a", "", Prompt(10)));
  EXPECT_EQ(tokens("a", "", Prompt(10)), 10u);
}

TEST(SeenPrompts, WindowsGoOnAtResumePointsOnly) {
  SeenPrompts seen(kMany);
  seen.Add(SeenPrompts::Of("a", "", Prompt(300)), std::vector<uint32_t>{100, 300});
  const auto tokens = [&](uint32_t size) {
    return seen.SeenTokens(SeenPrompts::Of("a", "", Prompt(size)));
  };
  EXPECT_EQ(tokens(300), 300u);
  EXPECT_EQ(tokens(400), 288u);
  EXPECT_EQ(tokens(280), 96u);
  EXPECT_EQ(tokens(90), 0u);
}

TEST(SeenPrompts, ForgetsWhatTheCacheHasNoRoomFor) {
  SeenPrompts seen(64 * 10);
  const auto prompt = [](TokenId i) { return SeenPrompts::Of("a", "", Prompt(64, 1000 * i)); };
  for (TokenId i = 0; i < 20; ++i) {
    seen.Add(prompt(0));  // it is used again and again
    seen.Add(prompt(i));
  }
  EXPECT_EQ(seen.SeenTokens(prompt(0)), 64u);
  EXPECT_EQ(seen.SeenTokens(prompt(19)), 64u);
  EXPECT_EQ(seen.SeenTokens(prompt(12)), 64u);
  EXPECT_EQ(seen.SeenTokens(prompt(5)), 0u);
}

TEST(SeenPrompts, ForgetsTheOldestWhereThereIsNoPlace) {
  SeenPrompts seen(kMany);
  const auto one = [](TokenId i) { return SeenPrompts::Of("a", "", Prompt(16, i)); };
  constexpr uint32_t kPrompts = 4 * SeenPrompts::kPlaces;
  for (uint32_t i = 0; i < kPrompts; ++i) seen.Add(one(static_cast<TokenId>(i)));
  EXPECT_EQ(seen.SeenTokens(one(kPrompts - 1)), 16u);
  uint32_t known = 0;
  for (uint32_t i = 0; i < kPrompts; ++i)
    known += seen.SeenTokens(one(static_cast<TokenId>(i))) > 0;
  EXPECT_LE(known, SeenPrompts::kPlaces);
  EXPECT_GT(known, SeenPrompts::kPlaces / 2);
}

}  // namespace
}  // namespace kvasir
