#include "base/digest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/arena.h"
#include "base/bytes_for_test.h"
#include "base/hex.h"
#include "base/random.h"

namespace kvasir {
namespace {

std::span<const uint8_t> Key(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

TEST(Digest, Sha256AnswersFips180Examples) {
  EXPECT_EQ(ToHex(Sha256Of("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(ToHex(Sha256().Update("ab").Update("c").Finish()), ToHex(Sha256Of("abc")));
  EXPECT_EQ(ToHex(Sha256Of("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Digest, HmacAnswersRfc4231Examples) {
  EXPECT_EQ(ToHex(HmacKey(Key("Jefe")).Of(BytesOf("what do ya want "), BytesOf("for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const std::string long_key(131, '\xaa');
  EXPECT_EQ(ToHex(HmacKey(Key(long_key))
                      .Of(BytesOf("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Random, DrawsAreFunctionsOfTheirCoordinatesAndUniform) {
  EXPECT_EQ(DrawBits(1, 2, 3), DrawBits(1, 2, 3));
  EXPECT_NE(DrawBits(1, 2, 3), DrawBits(1, 3, 2));
  double sum = 0;
  for (uint64_t i = 0; i < 100000; ++i) {
    const double u = DrawUniform(42, 0, i);
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
}

TEST(Arena, CountsTheSameSumItHandsOut) {
  Arena counter;
  EXPECT_EQ(counter.Take(100), nullptr);
  EXPECT_EQ(counter.TakeArray<double>(9), nullptr);
  auto arena = Arena::Create(counter.used());
  ASSERT_TRUE(arena);
  std::byte* a = arena->Take(100);
  double* b = arena->TakeArray<double>(9);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<std::byte*>(b) - a, 128);
  EXPECT_EQ(b[8], 0.0);
  EXPECT_EQ(arena->used(), arena->size());
}

TEST(Arena, ASumThatDoesNotFitNeverLooksSmall) {
  Arena twice, odd, array;
  twice.Take(uint64_t{1} << 63);
  twice.Take(uint64_t{1} << 63);
  odd.Take(UINT64_MAX - 8);
  array.TakeArray<double>(uint64_t{1} << 61);
  for (Arena* arena : {&twice, &odd, &array}) {
    EXPECT_EQ(arena->used(), UINT64_MAX);
    arena->Take(64);
    EXPECT_EQ(arena->used(), UINT64_MAX);
  }
  EXPECT_EQ(Arena::Create(UINT64_MAX).error().code, Code::kExhausted);
}

TEST(Arena, RefusedMemoryIsExhausted) {
  auto arena = Arena::Create(uint64_t{1} << 62);
  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error().code, Code::kExhausted);
}

}  // namespace
}  // namespace kvasir
