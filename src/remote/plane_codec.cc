// What Encode makes, little endian (also in docs/formats/remote.md), of n numbers:
//   coded := low[n]  u32 bytes of high  high
// low: the low byte of each number; high: the high bytes as one zstd frame, which names its
// content's size. What follows it does not count.
#include "remote/plane_codec.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <bit>
#include <cstring>

#define ZSTD_STATIC_LINKING_ONLY  // contexts in memory of the caller
#include <zstd.h>
#include <zstd_errors.h>

#include "base/bytes.h"
#include "base/check.h"

namespace kvasir {
namespace {

constexpr int kZstdLevel = 1;
constexpr size_t kHighBytes = sizeof(uint32_t);  // of the length before the high plane

uint64_t EncoderBytes(uint64_t plane_bytes) {
  return ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(kZstdLevel, plane_bytes, 0));
}

// Wipes memory when it goes.
class WipeAtEnd {
 public:
  explicit WipeAtEnd(std::span<std::byte> bytes) : bytes_(bytes) {}
  ~WipeAtEnd() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }
  WipeAtEnd(const WipeAtEnd&) = delete;
  WipeAtEnd& operator=(const WipeAtEnd&) = delete;

 private:
  const std::span<std::byte> bytes_;
};

// Returns bytes 0, 2, 4 and 6.
uint32_t EvenBytes(uint64_t x) {
  x &= 0x00FF00FF00FF00FF;
  x = (x | x >> 8) & 0x0000FFFF0000FFFF;
  return static_cast<uint32_t>(x | x >> 16);
}

// Returns a word with these bytes as bytes 0, 2, 4 and 6.
uint64_t AtEvenBytes(uint32_t bytes) {
  uint64_t x = bytes;
  x = (x | x << 16) & 0x0000FFFF0000FFFF;
  return (x | x << 8) & 0x00FF00FF00FF00FF;
}

void SplitPlanes(std::span<const std::byte> numbers, std::byte* low, std::byte* high) {
  const size_t num = numbers.size() / 2;
  size_t i = 0;
  for (; i + 4 <= num; i += 4) {
    uint64_t four;
    std::memcpy(&four, numbers.data() + 2 * i, 8);
    const uint32_t lows = EvenBytes(four), highs = EvenBytes(four >> 8);
    std::memcpy(low + i, &lows, 4);
    std::memcpy(high + i, &highs, 4);
  }
  for (; i < num; ++i) {
    low[i] = numbers[2 * i];
    high[i] = numbers[2 * i + 1];
  }
}

// Joins the planes in place. The low plane is the first half of `numbers`: from the last number on,
// none is written over what is still to be read.
void JoinPlanes(std::span<std::byte> numbers, const std::byte* high) {
  size_t i = numbers.size() / 2;
  for (; i % 4 != 0; --i) {
    const std::byte low = numbers[i - 1];
    numbers[2 * i - 2] = low;
    numbers[2 * i - 1] = high[i - 1];
  }
  for (; i > 0; i -= 4) {
    uint32_t lows, highs;
    std::memcpy(&lows, numbers.data() + i - 4, 4);
    std::memcpy(&highs, high + i - 4, 4);
    const uint64_t four = AtEvenBytes(lows) | AtEvenBytes(highs) << 8;
    std::memcpy(numbers.data() + 2 * (i - 4), &four, 8);
  }
}

}  // namespace

uint64_t PlaneCodec::MemoryBytes(uint64_t payload_bytes) {
  const uint64_t plane_bytes = payload_bytes / 2;
  return RoundUp(plane_bytes, 64) +
         RoundUp(std::max<uint64_t>(EncoderBytes(plane_bytes), ZSTD_estimateDCtxSize()), 64);
}

PlaneCodec::PlaneCodec(std::byte* memory, uint64_t payload_bytes)
    : plane_(memory, payload_bytes / 2) {
  KV_CHECK(payload_bytes % 2 == 0 && payload_bytes <= UINT32_MAX);
  const uint64_t before = RoundUp(plane_.size(), 64);
  context_ = {memory + before, MemoryBytes(payload_bytes) - before};
}

std::optional<uint64_t> PlaneCodec::Encode(std::span<const std::byte> numbers,
                                           std::span<std::byte> out) {
  KV_CHECK(numbers.size() == 2 * plane_.size());
  const size_t before = plane_.size() + kHighBytes;
  if (out.size() <= before) return std::nullopt;
  const std::span<std::byte> used = context_.first(EncoderBytes(plane_.size()));
  const WipeAtEnd wipe_plane(plane_), wipe_context(used);
  SplitPlanes(numbers, out.data(), plane_.data());
  ZSTD_CCtx* const zstd = ZSTD_initStaticCCtx(used.data(), used.size());
  KV_CHECK(zstd != nullptr);
  const size_t bytes = ZSTD_compressCCtx(zstd, out.data() + before, out.size() - before,
                                         plane_.data(), plane_.size(), kZstdLevel);
  if (ZSTD_isError(bytes) != 0) {
    KV_CHECK(ZSTD_getErrorCode(bytes) == ZSTD_error_dstSize_tooSmall);
    return std::nullopt;
  }
  const auto high_bytes = static_cast<uint32_t>(bytes);
  std::memcpy(out.data() + plane_.size(), &high_bytes, kHighBytes);
  return before + bytes;
}

bool PlaneCodec::Decode(uint64_t coded_bytes, std::span<std::byte> numbers) {
  KV_CHECK(numbers.size() == 2 * plane_.size() && coded_bytes <= numbers.size());
  const size_t before = plane_.size() + kHighBytes;
  if (coded_bytes <= before) return false;
  uint32_t high_bytes;
  std::memcpy(&high_bytes, numbers.data() + plane_.size(), kHighBytes);
  if (high_bytes > coded_bytes - before) return false;
  const std::span<const std::byte> high = numbers.subspan(before, high_bytes);
  // Nothing is decoded that says it is longer, or does not say how long it is.
  if (ZSTD_getFrameContentSize(high.data(), high.size()) != plane_.size()) return false;
  const std::span<std::byte> used = context_.first(ZSTD_estimateDCtxSize());
  const WipeAtEnd wipe_plane(plane_), wipe_context(used);
  ZSTD_DCtx* const zstd = ZSTD_initStaticDCtx(used.data(), used.size());
  KV_CHECK(zstd != nullptr);
  if (ZSTD_decompressDCtx(zstd, plane_.data(), plane_.size(), high.data(), high.size()) !=
      plane_.size()) {
    return false;
  }
  JoinPlanes(numbers, plane_.data());
  return true;
}

PlaneCodecs::PlaneCodecs(Arena& arena, uint64_t payload_bytes, uint32_t num)
    : payload_bytes_(payload_bytes),
      num_(num),
      memory_(arena.Take(num * PlaneCodec::MemoryBytes(payload_bytes))),
      free_((1u << num) - 1) {
  KV_CHECK(num <= kMost);
}

uint32_t PlaneCodecs::Take() {
  KV_CHECK(num_ > 0);
  MutexLock lock(mutex_);
  while (free_ == 0) lock.Wait(released_);
  const auto codec = static_cast<uint32_t>(std::countr_zero(free_));
  free_ &= free_ - 1;
  return codec;
}

void PlaneCodecs::Release(uint32_t codec) {
  {
    MutexLock lock(mutex_);
    free_ |= 1u << codec;
  }
  released_.notify_one();
}

PlaneCodec PlaneCodecs::at(uint32_t codec) const {
  return {memory_ + codec * PlaneCodec::MemoryBytes(payload_bytes_), payload_bytes_};
}

std::optional<uint64_t> PlaneCodecs::Encode(std::span<const std::byte> numbers,
                                            std::span<std::byte> out) {
  const uint32_t codec = Take();
  const std::optional<uint64_t> bytes = at(codec).Encode(numbers, out);
  Release(codec);
  return bytes;
}

bool PlaneCodecs::Decode(uint64_t coded_bytes, std::span<std::byte> numbers) {
  const uint32_t codec = Take();
  const bool is_right = at(codec).Decode(coded_bytes, numbers);
  Release(codec);
  return is_right;
}

}  // namespace kvasir
