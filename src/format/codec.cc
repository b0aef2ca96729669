#include "format/codec.h"

#include <algorithm>

#include "base/check.h"
#include "simd/half.h"

namespace kvasir {
namespace {

constexpr uint32_t kTinyBits = 0x0d800000u;  // 2^-100
constexpr uint16_t kNanScale = 0x7fc0;

// Returns the number of the format that the largest magnitude is scaled to.
float LargestOf(KvFormat format) {
  switch (format) {
    case KvFormat::kFp8E4m3:
      return 1.75f;  // 448 * 2^-8
    case KvFormat::kFp8E5m2:
      return 57344.0f;
    case KvFormat::kInt8:
    case KvFormat::kNf4:
      return 127.0f;
    case KvFormat::kInt4:
      return -8.0f;
    default:
      KV_CHECK(false);
      return 0;
  }
}

}  // namespace

uint16_t ScaleOf(KvFormat format, std::span<const float> x) {
  uint32_t amax = 0;
  for (const float value : x) amax = std::max(amax, BitsOf(value) & 0x7fffffffu);
  if (amax >= codec::kInfinityBits) return kNanScale;
  if (amax < kTinyBits) return 0;
  float largest = FloatOf(amax);
  if (format == KvFormat::kInt4) {
    for (const float value : x) {
      if ((BitsOf(value) & 0x7fffffffu) != amax) continue;
      largest = value;
      break;
    }
  }
  return ToBf16(largest / LargestOf(format));
}

}  // namespace kvasir
