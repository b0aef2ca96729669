#include "sampling/logit_scan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace kvasir {
namespace {

constexpr uint32_t kLanes = 16;  // parallel sums; a multiple of every vector's lanes
constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr double kLog2E = 1.4426950408889634074;

// Blocks whose largest power of e is below kSkip are not read: each of their terms is below
// kSkipped, of a sum of at least 1.
constexpr double kSkip = 38, kSkipped = 3.2e-17;  // e^-38 = 3.1e-17

// Computes e^x with the bits of Exp (simd/math.h) for x <= 0: the same operations without branches,
// so that a loop of it becomes vectors. Rounding to an integer is by the addition of 1.5 * 2^52,
// and 2^n goes into the exponent at once: both are exact.
inline double ExpOfNegative(double x) {
  const double shifted = x * kLog2E + 0x1.8p52;
  const double n = shifted - 0x1.8p52;
  double r = __builtin_fma(n, -6.93147180369123816490e-01, x);
  r = __builtin_fma(n, -1.90821492927058770002e-10, r);
  double p = 1.0;
#pragma GCC unroll 14
  for (int k = 14; k >= 1; --k) p = __builtin_fma(p * r, 1.0 / k, 1.0);
  const uint64_t scale = std::bit_cast<uint64_t>(shifted) << 52;
  const double y = std::bit_cast<double>(std::bit_cast<uint64_t>(p) + scale);
  return x < -700 ? 0.0 : y;
}

// Computes 2^x for x <= 0, relative error below 5e-11: the polynomial of degree 7 that is nearest
// to 2^f for |f| <= 1/2 (Remez) is within 4.1e-11.
inline double ClosePowerOfTwo(double x) {
  const double shifted = x + 0x1.8p52;
  const double f = x - (shifted - 0x1.8p52);
  double p = 1.5201922641975562e-05;
  p = __builtin_fma(p, f, 0.0001546929113080106);
  p = __builtin_fma(p, f, 0.0013333922559077525);
  p = __builtin_fma(p, f, 0.009618027253711369);
  p = __builtin_fma(p, f, 0.055504103534532084);
  p = __builtin_fma(p, f, 0.24022651198157208);
  p = __builtin_fma(p, f, 0.6931471807284456);
  p = __builtin_fma(p, f, 0.999999999961682);
  const uint64_t scale = std::bit_cast<uint64_t>(shifted) << 52;
  const double y = std::bit_cast<double>(std::bit_cast<uint64_t>(p) + scale);
  return x < -1000 ? 0.0 : y;
}

// 2^(l * c - m) in float, c = c_high + c_low, m = m_whole + m_part: the large parts are subtracted
// exactly, so that the error is that of a small r. Relative error below 4e-7 where the result is
// normal; 0 below 2^-125.
struct QuickPower {
  float c_high, c_low, m, m_whole, m_part;

  float operator()(float l) const {
    const float t = l * c_high - m;
    const float shifted = t + 0x1.8p23f;
    const float n = shifted - 0x1.8p23f;
    float r = __builtin_fmaf(l, c_high, -(n + m_whole)) - m_part;
    r = __builtin_fmaf(l, c_low, r);
    float p = 1.5252734e-05f;  // ln(2)^k / k!, k from 7 to 0
    p = __builtin_fmaf(p, r, 1.5403530e-04f);
    p = __builtin_fmaf(p, r, 1.3333558e-03f);
    p = __builtin_fmaf(p, r, 9.6181291e-03f);
    p = __builtin_fmaf(p, r, 5.5504109e-02f);
    p = __builtin_fmaf(p, r, 2.4022651e-01f);
    p = __builtin_fmaf(p, r, 6.9314718e-01f);
    p = __builtin_fmaf(p, r, 1.0f);
    const uint32_t scale = std::bit_cast<uint32_t>(shifted) << 23;
    const float y = std::bit_cast<float>(std::bit_cast<uint32_t>(p) + scale);
    return t < -125.0f ? 0.0f : y;
  }
};

// Calls fn(block, l) for each block of the row: l has kLogitBlock logits, -inf beyond the row's
// end.
template <typename Fn>
void ForBlocks(std::span<const float> logits, Fn&& fn) {
  const size_t whole = logits.size() / kLogitBlock;
  for (size_t block = 0; block < whole; ++block) fn(block, logits.data() + block * kLogitBlock);
  if (whole * kLogitBlock == logits.size()) return;
  float padded[kLogitBlock];
  std::fill_n(padded, kLogitBlock, kNegInf);
  std::copy(logits.begin() + static_cast<ptrdiff_t>(whole * kLogitBlock), logits.end(), padded);
  fn(whole, padded);
}

// sums[k] += the values k, k + kLanes, ... of a block.
template <typename T, uint32_t kNum>
inline void AddLanes(const T* values, T (&sums)[kNum]) {
  for (uint32_t i = 0; i < kLogitBlock; i += kNum) {
    for (uint32_t k = 0; k < kNum; ++k) sums[k] += values[i + k];
  }
}

// Does what CloseExpSum does; with a part, of the logits that are at least `threshold`.
template <bool kPart>
Interval CloseSum(std::span<const float> logits, const float* block_max, float max,
                  double temperature, float threshold) {
  double sums[kLanes] = {}, skipped = 0;
  const double top = max, per = kLog2E / temperature, least = top - kSkip * temperature;
  ForBlocks(logits, [&](size_t block, const float* l) {
    if (kPart && block_max[block] < threshold) return;
    if (block_max[block] < least) {
      skipped += kLogitBlock;
      return;
    }
    double values[kLogitBlock];
    for (uint32_t i = 0; i < kLogitBlock; ++i) {
      const double value = ClosePowerOfTwo((l[i] - top) * per);
      values[i] = kPart && l[i] < threshold ? 0.0 : value;
    }
    AddLanes(values, sums);
  });
  double sum = 0;
  for (const double part : sums) sum += part;
  // The errors of ClosePowerOfTwo, and the roundings of this sum and of the requested one.
  const double within = 6e-11 + 2 * RoundingOf(logits.size());
  return {sum * (1 - within), sum * (1 + within) + skipped * kSkipped};
}

}  // namespace

bool MaxOfBlocks(std::span<const float> logits, float* block_max) {
  // As integers of the same order, for which a maximum needs no rule about zeros.
  const auto flip = [](int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); };
  constexpr int32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
  int32_t largest = 0;  // magnitude
  ForBlocks(logits, [&](size_t block, const float* l) {
    int32_t most = std::numeric_limits<int32_t>::min(), magnitude = 0;
    const size_t count = std::min<size_t>(kLogitBlock, logits.size() - block * kLogitBlock);
    if (count < kLogitBlock) {  // the padding is not finite
      for (size_t i = 0; i < count; ++i) {
        most = std::max(most, flip(std::bit_cast<int32_t>(l[i])));
        magnitude = std::max(magnitude, std::bit_cast<int32_t>(l[i]) & kMagnitude);
      }
    } else {
      for (uint32_t i = 0; i < kLogitBlock; ++i) {
        most = std::max(most, flip(std::bit_cast<int32_t>(l[i])));
        magnitude = std::max(magnitude, std::bit_cast<int32_t>(l[i]) & kMagnitude);
      }
    }
    block_max[block] = std::bit_cast<float>(flip(most));
    largest = std::max(largest, magnitude);
  });
  return largest < kInfinity;
}

bool AllFinite(std::span<const float> logits) {
  constexpr uint32_t kInfinity = 0x7f800000;
  uint32_t most = 0;  // of the bits without sign: infinity and NaN are the largest
  for (const float l : logits) {
    const uint32_t bits = std::bit_cast<uint32_t>(l) & 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  return most < kInfinity;
}

bool CopyLegal(std::span<const float> logits, std::span<const uint64_t> legal, float other,
               float* out) {
  constexpr uint32_t kInfinity = 0x7f800000, kBits = 32;
  uint32_t most = 0;  // as in AllFinite
  const auto copy = [&](const float* l, uint32_t bits, uint32_t count, float* to) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(l[i]) & 0x7fffffffu;
      most = magnitude > most ? magnitude : most;
      to[i] = (bits >> i & 1) != 0 ? l[i] : other;
    }
  };
  const size_t whole = logits.size() / kBits * kBits;
  const auto bits_at = [&](size_t i) { return static_cast<uint32_t>(legal[i / 64] >> (i % 64)); };
  for (size_t i = 0; i < whole; i += kBits) copy(logits.data() + i, bits_at(i), kBits, out + i);
  if (whole < logits.size()) {
    copy(logits.data() + whole, bits_at(whole), static_cast<uint32_t>(logits.size() - whole),
         out + whole);
  }
  return most < kInfinity;
}

uint32_t CollectAtLeast(std::span<const float> logits, const float* block_max, float threshold,
                        TokenId* ids, uint32_t capacity) {
  constexpr uint32_t kLook = 32;
  uint32_t num = 0;
  ForBlocks(logits, [&](size_t block, const float* l) {
    if (!(block_max[block] >= threshold)) return;
    const size_t begin = block * kLogitBlock;
    const size_t count = std::min<size_t>(kLogitBlock, logits.size() - begin);
    for (size_t first = 0; first < count; first += kLook) {
      int any = 0;
      for (size_t i = first; i < first + kLook; ++i) any |= l[i] >= threshold ? 1 : 0;
      if (any == 0) continue;
      for (size_t i = first; i < std::min(count, first + kLook) && num < capacity; ++i) {
        if (l[i] >= threshold) ids[num++] = static_cast<TokenId>(begin + i);
      }
    }
  });
  return num;
}

uint32_t CountBetween(std::span<const float> logits, const float* block_max, float low,
                      float high) {
  uint32_t num = 0;
  ForBlocks(logits, [&](size_t block, const float* l) {
    if (!(block_max[block] >= low)) return;
    uint32_t of_block = 0;
    for (uint32_t i = 0; i < kLogitBlock; ++i) of_block += l[i] >= low && l[i] <= high ? 1 : 0;
    num += of_block;
  });
  return num;
}

ExpSums QuickExpSums(std::span<const float> logits, const float* block_max, float max,
                     float temperature, float threshold, ExpSumsOf which) {
  const bool with_all = which == ExpSumsOf::kAllAndPart;
  const double c = kLog2E / temperature, m = max * c;
  // Beyond this the exact parts of QuickPower would not be exact.
  if (std::fabs(m) > 0x1p20 || c > 0x1p20) {
    const Interval all = with_all ? CloseExpSum(logits, block_max, max, temperature) : Interval{};
    return {all, CloseSum<true>(logits, block_max, max, temperature, threshold)};
  }
  QuickPower power;
  power.c_high = static_cast<float>(c);
  power.c_low = static_cast<float>(c - power.c_high);
  power.m = static_cast<float>(m);
  power.m_whole = std::nearbyint(power.m);
  power.m_part = static_cast<float>(m - power.m_whole);
  const double least = max - kSkip * double{temperature};
  double all = 0, part = 0, skipped = 0;
  const auto add = [](const float* values, double* to) {
    float sums[kLanes] = {};
    AddLanes(values, sums);
    for (const float sum : sums) *to += sum;
  };
  ForBlocks(logits, [&](size_t block, const float* l) {
    const bool has_part = block_max[block] >= threshold;
    if (!has_part && !with_all) return;
    if (block_max[block] < least) {
      skipped += kLogitBlock;
      return;
    }
    float values[kLogitBlock];
    for (uint32_t i = 0; i < kLogitBlock; ++i) values[i] = power(l[i]);
    if (with_all) add(values, &all);
    if (!has_part) return;
    for (uint32_t i = 0; i < kLogitBlock; ++i) values[i] = l[i] >= threshold ? values[i] : 0.0f;
    add(values, &part);
  });
  const double left_out = skipped * kSkipped + static_cast<double>(logits.size()) * 0x1p-124;
  const auto around = [&](double sum) {
    return Interval{sum * (1 - 1e-6), sum * (1 + 1e-6) + left_out};
  };
  return {around(all), around(part)};
}

Interval CloseExpSum(std::span<const float> logits, const float* block_max, float max,
                     double temperature) {
  return CloseSum<false>(logits, block_max, max, temperature, kNegInf);
}

double ExpWeights(std::span<const float> logits, float max, double temperature, double* weights) {
  double total = 0;
  const double top = max;
  ForBlocks(logits, [&](size_t block, const float* l) {
    double values[kLogitBlock];
    for (uint32_t i = 0; i < kLogitBlock; ++i) {
      values[i] = ExpOfNegative((l[i] - top) / temperature);
    }
    const size_t begin = block * kLogitBlock;
    const size_t count = std::min<size_t>(kLogitBlock, logits.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      weights[begin + i] = values[i];
      total += values[i];
    }
  });
  return total;
}

}  // namespace kvasir
