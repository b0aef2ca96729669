#include "remote/plane_codec.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "base/rounds_for_test.h"
#include "remote/numbers_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kMostNumbersBytes = 256 * 1024;

class PlaneCodecTest : public testing::Test {
 protected:
  // Returns a codec for so many bytes, of memory that ends where it may end.
  PlaneCodec CodecFor(uint64_t payload_bytes) {
    const uint64_t bytes = PlaneCodec::MemoryBytes(payload_bytes);
    EXPECT_LE(bytes, memory_.size());
    begin_ = memory_.size() - bytes;
    return {memory_.data() + begin_, payload_bytes};
  }
  bool IsWiped() const {
    return std::all_of(memory_.data() + begin_, memory_.data() + memory_.size(),
                       [](std::byte byte) { return byte == std::byte{0}; });
  }
  std::vector<std::byte> Numbers(NumbersLike like, uint64_t bytes) {
    std::vector<std::byte> numbers(bytes);
    FillNumbers(like, random_, numbers);
    return numbers;
  }
  // Returns zeros as low bytes, and then this frame as the high plane.
  static std::vector<std::byte> WithFrame(size_t bytes, std::span<const std::byte> frame) {
    std::vector<std::byte> coded(bytes);
    const auto size = static_cast<uint32_t>(frame.size());
    std::memcpy(coded.data() + bytes / 2, &size, 4);
    std::memcpy(coded.data() + bytes / 2 + 4, frame.data(), frame.size());
    return coded;
  }

  Random random_{5};
  Arena memory_arena_ = *Arena::Create(PlaneCodec::MemoryBytes(kMostNumbersBytes));
  std::span<std::byte> memory_{memory_arena_.Take(memory_arena_.size()), memory_arena_.size()};
  uint64_t begin_ = 0;
};

TEST_F(PlaneCodecTest, GivesBackWhatWasEncoded) {
  const bool is_slow = std::getenv("KVASIR_SLOW") != nullptr;
  const int rounds = is_slow ? 1'000'000 : Rounds(100'000, 5000);
  int coded_rounds = 0;  // a round that is refused tells nothing of the way back
  for (int i = 0; coded_rounds < rounds; ++i) {
    ASSERT_LT(i / 4, rounds) << "of each four only " << 4.0 * coded_rounds / i << " are encoded";
    const uint64_t bytes = 2 * (1 + random_.Below(i % 1000 == 0 ? 60'000 : 300));
    const auto like = static_cast<NumbersLike>(random_.Below(4));
    const std::vector<std::byte> numbers = Numbers(like, bytes);
    std::vector<std::byte> out(bytes);
    PlaneCodec codec = CodecFor(bytes);
    const std::optional<uint64_t> coded =
        codec.Encode(numbers, std::span(out).first(bytes - random_.Below(bytes / 8 + 1)));
    if (!coded) {
      EXPECT_FALSE(like == NumbersLike::kZeros && bytes > 200) << bytes;
      continue;
    }
    ++coded_rounds;
    ASSERT_LE(*coded, bytes);
    ASSERT_TRUE(codec.Decode(bytes - random_.Below(bytes - *coded + 1), out)) << i;
    ASSERT_EQ(out, numbers) << i << " of " << bytes;
  }
}

TEST_F(PlaneCodecTest, NumbersLikeThoseOfAModelGetSmaller) {
  for (const auto& [like, most] : {std::pair(NumbersLike::kF16, 0.9), {NumbersLike::kBf16, 0.72}}) {
    const std::vector<std::byte> numbers = Numbers(like, 196'608);
    std::vector<std::byte> out(numbers.size());
    const auto coded = CodecFor(numbers.size()).Encode(numbers, out);
    ASSERT_TRUE(coded);
    EXPECT_LT(static_cast<double>(*coded), most * static_cast<double>(numbers.size()));
    EXPECT_GT(*coded, numbers.size() / 2);
  }
  const std::vector<std::byte> noise = Numbers(NumbersLike::kNoise, 196'608);
  std::vector<std::byte> out(noise.size());
  EXPECT_FALSE(CodecFor(noise.size()).Encode(noise, out));
}

TEST_F(PlaneCodecTest, EverySizeHasTheMemoryThatItNeeds) {
  for (uint64_t bytes = 64; bytes <= kMostNumbersBytes;
       bytes += bytes < 4096 ? 62 : bytes / 5 * 2) {
    const std::vector<std::byte> numbers = Numbers(NumbersLike::kBf16, bytes);
    std::vector<std::byte> out(bytes + 64);
    PlaneCodec codec = CodecFor(bytes);
    const auto coded = codec.Encode(numbers, out);
    ASSERT_TRUE(coded) << bytes;
    ASSERT_TRUE(*coded > bytes || codec.Decode(*coded, std::span(out).first(bytes))) << bytes;
  }
}

TEST_F(PlaneCodecTest, WipesItsMemory) {
  const std::vector<std::byte> numbers = Numbers(NumbersLike::kF16, 8192);
  std::vector<std::byte> out(numbers.size());
  PlaneCodec codec = CodecFor(numbers.size());
  const auto coded = codec.Encode(numbers, out);
  ASSERT_TRUE(coded);
  EXPECT_TRUE(IsWiped());
  std::vector<std::byte> damaged = out;
  damaged[*coded - 3] ^= std::byte{64};
  codec.Decode(*coded, damaged);
  EXPECT_TRUE(IsWiped());
  EXPECT_TRUE(codec.Decode(*coded, out));
  EXPECT_TRUE(IsWiped());
  std::vector<std::byte> little(5000);
  EXPECT_FALSE(codec.Encode(numbers, little));
  EXPECT_TRUE(IsWiped());
}

TEST_F(PlaneCodecTest, WhatIsDamagedOrCutStaysWithinItsMemory) {
  constexpr size_t kBytes = 4096, kGuard = 64;
  const std::vector<std::byte> numbers = Numbers(NumbersLike::kBf16, kBytes);
  std::vector<std::byte> out(kBytes);
  PlaneCodec codec = CodecFor(kBytes);
  const uint64_t coded = codec.Encode(numbers, out).value();
  uint32_t cut = 0;
  for (int i = 0; i < Rounds(100000, 5000); ++i) {
    std::vector<std::byte> damaged(kBytes + kGuard, std::byte{0xA5});
    std::copy(out.begin(), out.end(), damaged.begin());
    const bool cuts = random_.Below(2) == 0;
    const uint64_t bytes = cuts ? random_.Below(coded) : kBytes;
    for (uint64_t k = 0; !cuts && k <= random_.Below(3); ++k) {
      damaged[random_.Below(coded)] ^= std::byte(1u << random_.Below(8));
    }
    const bool decodes = codec.Decode(bytes, std::span(damaged).first(kBytes));
    cut += cuts && decodes;
    ASSERT_TRUE(std::all_of(damaged.begin() + kBytes, damaged.end(),
                            [](std::byte byte) { return byte == std::byte{0xA5}; }));
  }
  EXPECT_EQ(cut, 0u);
}

TEST_F(PlaneCodecTest, AFrameSaysHowLongItIsBeforeItIsDecoded) {
  constexpr size_t kBytes = 4096;
  PlaneCodec codec = CodecFor(kBytes);
  const auto frame_of = [](size_t bytes) {
    const std::vector<std::byte> plane(bytes);
    std::vector<std::byte> frame(ZSTD_compressBound(bytes));
    frame.resize(ZSTD_compress(frame.data(), frame.size(), plane.data(), bytes, 1));
    return frame;
  };
  std::vector<std::byte> coded = WithFrame(kBytes, frame_of(kBytes / 2));
  EXPECT_TRUE(codec.Decode(kBytes, coded));
  for (const size_t bytes : {size_t{0}, kBytes / 2 - 1, kBytes / 2 + 1, size_t{16} << 20}) {
    coded = WithFrame(kBytes, frame_of(bytes));
    EXPECT_FALSE(codec.Decode(kBytes, coded)) << bytes;
  }
  // A frame that says the right length before another one that follows it.
  std::vector<std::byte> two = frame_of(kBytes / 2);
  const std::vector<std::byte> more = frame_of(100);
  two.insert(two.end(), more.begin(), more.end());
  coded = WithFrame(kBytes, two);
  EXPECT_FALSE(codec.Decode(kBytes, coded));
  // One without a length, as streams have it.
  std::vector<std::byte> stream(512);
  const std::vector<std::byte> plane(kBytes / 2);
  ZSTD_CCtx* const zstd = ZSTD_createCCtx();
  ZSTD_inBuffer in{plane.data(), plane.size(), 0};
  ZSTD_outBuffer to{stream.data(), stream.size(), 0};
  ZSTD_compressStream2(zstd, &to, &in, ZSTD_e_continue);
  EXPECT_EQ(ZSTD_compressStream2(zstd, &to, &in, ZSTD_e_end), 0u);
  ZSTD_freeCCtx(zstd);
  coded = WithFrame(kBytes, std::span(stream).first(to.pos));
  EXPECT_FALSE(codec.Decode(kBytes, coded));
}

TEST(PlaneCodecs, MoreThreadsThanCodecsTakeTurns) {
  constexpr uint64_t kBytes = 4096;
  Arena planned;
  const PlaneCodecs measured(planned, kBytes, 2);
  Arena arena = *Arena::Create(planned.used());
  PlaneCodecs codecs(arena, kBytes, 2);
  EXPECT_EQ(arena.used(), arena.size());
  EXPECT_FALSE(codecs.empty());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      Random random(t);
      std::vector<std::byte> numbers(kBytes), out(kBytes);
      for (int i = 0; i < 200; ++i) {
        FillNumbers(NumbersLike::kF16, random, numbers);
        const auto coded = codecs.Encode(numbers, out);
        wrong += !coded || !codecs.Decode(*coded, out) || out != numbers;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace kvasir
