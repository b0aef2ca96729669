#include "engine/seen_prompts.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvasir {
namespace {

std::vector<TokenId> Prompt(uint32_t tokens, TokenId first = 0) {
  std::vector<TokenId> prompt(tokens);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

TEST(SeenPrompts, FindsWholeChunksOfWhatOneOwnerSent) {
  SeenPrompts seen;
  const auto tokens = [&](std::string_view owner, std::string_view salt,
                          const std::vector<TokenId>& prompt) {
    return seen.SeenTokens(SeenPrompts::HashesOf(owner, salt, prompt));
  };
  EXPECT_EQ(tokens("a", "", Prompt(300)), 0u);
  seen.Add(SeenPrompts::HashesOf("a", "", Prompt(300)));
  EXPECT_EQ(tokens("a", "", Prompt(300)), 256u);
  EXPECT_EQ(tokens("a", "", Prompt(1000)), 256u);
  EXPECT_EQ(tokens("a", "", Prompt(63)), 0u);
  EXPECT_EQ(tokens("a", "", Prompt(300, 1)), 0u);
  EXPECT_EQ(tokens("b", "", Prompt(300)), 0u);
  EXPECT_EQ(tokens("a", "x", Prompt(300)), 0u);
  std::vector<TokenId> edited = Prompt(300);
  edited[130] = 7;
  EXPECT_EQ(tokens("a", "", edited), 128u);
}

TEST(SeenPrompts, ForgetsTheOldestWhereThereIsNoRoom) {
  SeenPrompts seen;
  const auto hashes = [](TokenId i) { return SeenPrompts::HashesOf("a", "", Prompt(64, i)); };
  constexpr uint32_t kPrompts = 4 * SeenPrompts::kPlaces;
  for (uint32_t i = 0; i < kPrompts; ++i) seen.Add(hashes(static_cast<TokenId>(i)));
  EXPECT_EQ(seen.SeenTokens(hashes(kPrompts - 1)), 64u);
  uint32_t known = 0;
  for (uint32_t i = 0; i < kPrompts; ++i)
    known += seen.SeenTokens(hashes(static_cast<TokenId>(i))) > 0;
  EXPECT_LE(known, SeenPrompts::kPlaces);
  EXPECT_GT(known, SeenPrompts::kPlaces / 2);
}

}  // namespace
}  // namespace kvasir
