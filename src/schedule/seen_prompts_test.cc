#include "schedule/seen_prompts.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <string>

#include "base/random.h"
#include "base/rounds_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kMany = uint64_t{1} << 30;  // tokens

const HmacKey& Key() {
  static const HmacKey key(std::vector<uint8_t>(32, 7));
  return key;
}

std::vector<TokenId> SeenPrompt(uint32_t tokens, TokenId first = 0) {
  std::vector<TokenId> prompt(tokens);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

TEST(SeenPrompts, FindsWholeChunksAndWholePromptsOfOneOwner) {
  SeenPrompts seen(kMany);
  const auto tokens = [&](std::string_view owner, std::optional<std::string_view> salt,
                          const std::vector<TokenId>& prompt) {
    return seen.SeenTokens(SeenPrompts::Of(Key(), owner, salt, prompt));
  };
  EXPECT_EQ(tokens("a", {}, SeenPrompt(300)), 0u);
  seen.Add(SeenPrompts::Of(Key(), "a", {}, SeenPrompt(300)));
  EXPECT_EQ(tokens("a", {}, SeenPrompt(300)), 300u);
  EXPECT_EQ(tokens("a", {}, SeenPrompt(1000)), 288u);
  EXPECT_EQ(tokens("a", {}, SeenPrompt(15)), 0u);
  EXPECT_EQ(tokens("a", {}, SeenPrompt(40)), 32u);
  EXPECT_EQ(tokens("a", {}, {}), 0u);
  EXPECT_EQ(tokens("a", {}, SeenPrompt(300, 1)), 0u);
  EXPECT_EQ(tokens("b", {}, SeenPrompt(300)), 0u);
  EXPECT_EQ(tokens("a", "x", SeenPrompt(300)), 0u);
  std::vector<TokenId> edited = SeenPrompt(300);
  edited[130] = 7;
  EXPECT_EQ(tokens("a", {}, edited), 128u);
  seen.Add(SeenPrompts::Of(Key(), "b", {}, SeenPrompt(300)));
  seen.Forget("a");
  EXPECT_EQ(tokens("a", {}, SeenPrompt(300)), 0u);
  EXPECT_EQ(tokens("b", {}, SeenPrompt(300)), 300u);
  seen.Add(SeenPrompts::Of(Key(), "a", {}, SeenPrompt(10)));
  EXPECT_EQ(tokens("a", {}, SeenPrompt(10)), 10u);
}

#ifdef __GLIBCXX__
// A salt of 8 bytes with this std::hash: libstdc++'s is MurmurHash64A, each step of which can be
// undone.
std::string SaltWithHash(uint64_t hash) {
  constexpr uint64_t kMul = 0xc6a4a7935bd1e995, kSeed = 0xc70f6907;
  uint64_t inverse = kMul;  // right in 3 bits, then in 6, 12, ...
  for (int i = 0; i < 5; ++i) inverse *= 2 - kMul * inverse;
  const auto shift_mix = [](uint64_t x) { return x ^ (x >> 47); };  // undoes itself
  const uint64_t mixed = shift_mix(shift_mix(hash) * inverse) * inverse;
  const uint64_t word = shift_mix((mixed ^ kSeed ^ (8 * kMul)) * inverse) * inverse;
  std::string salt(8, '\0');
  std::memcpy(salt.data(), &word, 8);
  return salt;
}

TEST(SeenPrompts, NoSaltReachesAnotherOwnersPrompts) {
  const std::hash<std::string_view> hash_of;
  const uint64_t owners = Mix64(hash_of("victim")) ^ Mix64(hash_of("attacker"));
  const std::string salt = SaltWithHash(owners ^ hash_of(""));
  ASSERT_EQ(Mix64(hash_of("attacker")) ^ hash_of(salt), Mix64(hash_of("victim")) ^ hash_of(""));
  SeenPrompts seen(kMany);
  seen.Add(SeenPrompts::Of(Key(), "victim", {}, SeenPrompt(300)));
  EXPECT_EQ(seen.SeenTokens(SeenPrompts::Of(Key(), "attacker", salt, SeenPrompt(300))), 0u);
}
#endif

TEST(SeenPrompts, TheBoundaryOfOwnerAndSaltCounts) {
  SeenPrompts seen(kMany);
  seen.Add(SeenPrompts::Of(Key(), "ab", "c", SeenPrompt(300)));
  EXPECT_EQ(seen.SeenTokens(SeenPrompts::Of(Key(), "a", "bc", SeenPrompt(300))), 0u);
}

TEST(SeenPrompts, OtherAdaptersHaveOtherPrompts) {
  SeenPrompts seen(kMany);
  const auto tokens = [&](std::optional<std::string_view> salt, const Digest& adapters) {
    return seen.SeenTokens(SeenPrompts::Of(Key(), "a", salt, SeenPrompt(300), adapters));
  };
  const Digest none{}, one{1}, other{2};
  seen.Add(SeenPrompts::Of(Key(), "a", {}, SeenPrompt(300), one));
  EXPECT_EQ(tokens({}, one), 300u);
  EXPECT_EQ(tokens({}, other), 0u);
  EXPECT_EQ(tokens({}, none), 0u);
  EXPECT_EQ(tokens("x", one), 0u);
  seen.Add(SeenPrompts::Of(Key(), "a", {}, SeenPrompt(200)));
  EXPECT_EQ(tokens({}, none), 192u);
  EXPECT_EQ(tokens({}, other), 0u);
}

TEST(SeenPrompts, OtherKeysGiveOtherHashes) {
  const HmacKey other(std::vector<uint8_t>(32, 8));
  EXPECT_NE(SeenPrompts::Of(Key(), "a", {}, SeenPrompt(300)).hashes,
            SeenPrompts::Of(other, "a", {}, SeenPrompt(300)).hashes);
}

TEST(SeenPrompts, WindowsGoOnAtResumePointsOnly) {
  SeenPrompts seen(kMany);
  seen.Add(SeenPrompts::Of(Key(), "a", {}, SeenPrompt(300)), std::vector<uint32_t>{100, 300});
  const auto tokens = [&](uint32_t size) {
    return seen.SeenTokens(SeenPrompts::Of(Key(), "a", {}, SeenPrompt(size)));
  };
  EXPECT_EQ(tokens(300), 300u);
  EXPECT_EQ(tokens(400), 288u);
  EXPECT_EQ(tokens(280), 96u);
  EXPECT_EQ(tokens(90), 0u);
}

TEST(SeenPrompts, ForgetsWhatTheCacheHasNoRoomFor) {
  SeenPrompts seen(64 * 10);
  const auto prompt = [](TokenId i) {
    return SeenPrompts::Of(Key(), "a", {}, SeenPrompt(64, 1000 * i));
  };
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
  const auto one = [](TokenId i) { return SeenPrompts::Of(Key(), "a", {}, SeenPrompt(16, i)); };
  constexpr uint32_t kPrompts = Rounds(4, 2) * SeenPrompts::kPlaces;
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
