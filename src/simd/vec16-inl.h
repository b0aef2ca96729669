// V16: sixteen f32 lanes, the width that portable-1 is defined on, on every target. A kernel is
// written once against it and compiled once per target, in the namespace KVASIR_TARGET_NS; its bits
// are those of the scalar form, since each operation is IEEE and lane by lane.
// The build defines the two macros for each target (cmake/kvasir.cmake).
//   KVASIR_TARGET_NS   scalar | avx2 | avx512 | neon, or a target that adds integer products to one
//   KVASIR_TARGET_ID   0 | 1 | 2 | 3
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/half.h"

#if KVASIR_TARGET_ID == 3
#include <arm_neon.h>
#elif KVASIR_TARGET_ID > 0
#include <immintrin.h>
#endif

#define KV_INLINE inline __attribute__((always_inline))
#define KV_UNROLL _Pragma("GCC unroll 16")  // for loops over arrays that should be in registers

namespace kvasir::KVASIR_TARGET_NS {

#if KVASIR_TARGET_ID == 2

struct V16 {
  __m512 v;
};
KV_INLINE V16 Zero() { return {_mm512_setzero_ps()}; }
KV_INLINE V16 Set(float x) { return {_mm512_set1_ps(x)}; }
KV_INLINE V16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
KV_INLINE void Store(float* p, V16 a) { _mm512_storeu_ps(p, a.v); }
KV_INLINE V16 Fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
KV_INLINE V16 Add(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
KV_INLINE V16 Sub(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
KV_INLINE V16 Mul(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
KV_INLINE V16 Div(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }
KV_INLINE V16 Max(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }  // a > b ? a : b
KV_INLINE V16 Min(V16 a, V16 b) { return {_mm512_min_ps(a.v, b.v)}; }  // a < b ? a : b
KV_INLINE V16 RoundEven(V16 a) { return {_mm512_roundscale_ps(a.v, 0)}; }
// Returns 2^n for integral n in [-126, 127].
KV_INLINE V16 Pow2(V16 n) {
  const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
}
// a < b ? yes : no, lane by lane.
KV_INLINE V16 SelectLess(V16 a, V16 b, V16 yes, V16 no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
// Returns lanes of a where the bit is set, else lanes of b.
KV_INLINE V16 SelectLanes(uint32_t bits, V16 a, V16 b) {
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(bits), b.v, a.v)};
}
KV_INLINE V16 LoadF16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
KV_INLINE V16 LoadBf16(const uint16_t* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
// a * 2^n for integral n in [-126, 127], rounded once.
KV_INLINE V16 TimesPow2(V16 a, V16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// max(|a|, |b|), compared as bits; NaN is largest.
KV_INLINE V16 MaxMagnitude(V16 a, V16 b) {
  const __m512i mask = _mm512_set1_epi32(0x7fffffff);
  return {_mm512_castsi512_ps(_mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a.v), mask),
                                               _mm512_and_si512(_mm512_castps_si512(b.v), mask)))};
}
// Returns the largest lane of a result of MaxMagnitude.
KV_INLINE float MagnitudeLane(V16 a) {
  return FloatOf(_mm512_reduce_max_epu32(_mm512_castps_si512(a.v)));
}
KV_INLINE float MaxLane(V16 a) { return _mm512_reduce_max_ps(a.v); }  // of numbers, in any order
KV_INLINE float SumTree(V16 a) {
  const __m256 lo = _mm512_castps512_ps256(a.v);
  const __m256 hi = _mm512_extractf32x8_ps(a.v, 1);
  const __m256 s8 = _mm256_add_ps(lo, hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

#elif KVASIR_TARGET_ID == 1

struct V16 {
  __m256 lo, hi;
};
KV_INLINE V16 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
KV_INLINE V16 Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
KV_INLINE V16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
KV_INLINE void Store(float* p, V16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
KV_INLINE V16 Fma(V16 a, V16 b, V16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
KV_INLINE V16 Add(V16 a, V16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
KV_INLINE V16 Sub(V16 a, V16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
KV_INLINE V16 Mul(V16 a, V16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
KV_INLINE V16 Div(V16 a, V16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
KV_INLINE V16 Max(V16 a, V16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
KV_INLINE V16 Min(V16 a, V16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
KV_INLINE V16 RoundEven(V16 a) {
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
KV_INLINE __m256 Pow2Half(__m256 n) {
  const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
KV_INLINE V16 Pow2(V16 n) { return {Pow2Half(n.lo), Pow2Half(n.hi)}; }
KV_INLINE V16 TimesPow2(V16 a, V16 n) { return Mul(a, Pow2(n)); }
KV_INLINE __m256 MaxMagnitudeHalf(__m256 a, __m256 b) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_and_si256(_mm256_castps_si256(a), mask),
                                              _mm256_and_si256(_mm256_castps_si256(b), mask)));
}
KV_INLINE V16 MaxMagnitude(V16 a, V16 b) {
  return {MaxMagnitudeHalf(a.lo, b.lo), MaxMagnitudeHalf(a.hi, b.hi)};
}
KV_INLINE float MagnitudeLane(V16 a) {
  const __m256i m8 = _mm256_max_epu32(_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi));
  const __m128i m4 = _mm_max_epu32(_mm256_castsi256_si128(m8), _mm256_extracti128_si256(m8, 1));
  const __m128i m2 = _mm_max_epu32(m4, _mm_shuffle_epi32(m4, _MM_SHUFFLE(1, 0, 3, 2)));
  const __m128i m1 = _mm_max_epu32(m2, _mm_shuffle_epi32(m2, _MM_SHUFFLE(2, 3, 0, 1)));
  return FloatOf(static_cast<uint32_t>(_mm_cvtsi128_si32(m1)));
}
KV_INLINE float MaxLane(V16 a) {
  const __m256 m8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_shuffle_ps(m2, m2, 1)));
}
KV_INLINE V16 SelectLess(V16 a, V16 b, V16 yes, V16 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
KV_INLINE V16 SelectLanes(uint32_t bits, V16 a, V16 b) {
  const __m256i of_lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i lo = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), of_lane);
  const __m256i hi = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits >> 8)), of_lane);
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(_mm256_cmpeq_epi32(lo, of_lane))),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(_mm256_cmpeq_epi32(hi, of_lane)))};
}
KV_INLINE V16 LoadF16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
KV_INLINE __m256 WidenBf16(const uint16_t* p) {
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
KV_INLINE V16 LoadBf16(const uint16_t* p) { return {WidenBf16(p), WidenBf16(p + 8)}; }
KV_INLINE float SumTree(V16 a) {
  const __m256 s8 = _mm256_add_ps(a.lo, a.hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

#elif KVASIR_TARGET_ID == 3

struct V16 {
  float32x4_t v[4];
};
#define KV_QUARTERS(expr)                      \
  V16 r;                                       \
  for (int i = 0; i < 4; ++i) r.v[i] = (expr); \
  return r
KV_INLINE V16 Zero() { KV_QUARTERS(vdupq_n_f32(0)); }
KV_INLINE V16 Set(float x) { KV_QUARTERS(vdupq_n_f32(x)); }
KV_INLINE V16 Load(const float* p) { KV_QUARTERS(vld1q_f32(p + i * 4)); }
KV_INLINE void Store(float* p, V16 a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + i * 4, a.v[i]);
}
KV_INLINE V16 Fma(V16 a, V16 b, V16 c) { KV_QUARTERS(vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
KV_INLINE V16 Add(V16 a, V16 b) { KV_QUARTERS(vaddq_f32(a.v[i], b.v[i])); }
KV_INLINE V16 Sub(V16 a, V16 b) { KV_QUARTERS(vsubq_f32(a.v[i], b.v[i])); }
KV_INLINE V16 Mul(V16 a, V16 b) { KV_QUARTERS(vmulq_f32(a.v[i], b.v[i])); }
KV_INLINE V16 Div(V16 a, V16 b) { KV_QUARTERS(vdivq_f32(a.v[i], b.v[i])); }
// Differs from vmaxq: like x86's max, this returns the second operand when one is NaN.
KV_INLINE V16 Max(V16 a, V16 b) {
  KV_QUARTERS(vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]));
}
KV_INLINE V16 Min(V16 a, V16 b) {
  KV_QUARTERS(vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]));
}
KV_INLINE V16 RoundEven(V16 a) { KV_QUARTERS(vrndnq_f32(a.v[i])); }
KV_INLINE V16 Pow2(V16 n) {
  KV_QUARTERS(
      vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23)));
}
KV_INLINE V16 TimesPow2(V16 a, V16 n) { return Mul(a, Pow2(n)); }
KV_INLINE V16 MaxMagnitude(V16 a, V16 b) {
  V16 r;
  const uint32x4_t mask = vdupq_n_u32(0x7fffffff);
  for (int i = 0; i < 4; ++i) {
    r.v[i] = vreinterpretq_f32_u32(vmaxq_u32(vandq_u32(vreinterpretq_u32_f32(a.v[i]), mask),
                                             vandq_u32(vreinterpretq_u32_f32(b.v[i]), mask)));
  }
  return r;
}
KV_INLINE float MagnitudeLane(V16 a) {
  uint32x4_t m = vreinterpretq_u32_f32(a.v[0]);
  for (int i = 1; i < 4; ++i) m = vmaxq_u32(m, vreinterpretq_u32_f32(a.v[i]));
  return FloatOf(vmaxvq_u32(m));
}
KV_INLINE float MaxLane(V16 a) {
  const V16 m{{vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])}};
  return vmaxvq_f32(vmaxq_f32(m.v[0], m.v[1]));
}
KV_INLINE V16 SelectLess(V16 a, V16 b, V16 yes, V16 no) {
  KV_QUARTERS(vbslq_f32(vcltq_f32(a.v[i], b.v[i]), yes.v[i], no.v[i]));
}
KV_INLINE V16 SelectLanes(uint32_t bits, V16 a, V16 b) {
  constexpr uint32_t kOfLane[4] = {1, 2, 4, 8};
  const uint32x4_t of_lane = vld1q_u32(kOfLane);
  KV_QUARTERS(vbslq_f32(vtstq_u32(vdupq_n_u32(bits >> (i * 4)), of_lane), a.v[i], b.v[i]));
}
KV_INLINE V16 LoadF16(const uint16_t* p) {
  KV_QUARTERS(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + i * 4))));
}
KV_INLINE V16 LoadBf16(const uint16_t* p) {
  KV_QUARTERS(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + i * 4), 16)));
}
KV_INLINE float SumTree(V16 a) {
  const float32x4_t s4 = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
  return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}
#undef KV_QUARTERS

#else

struct V16 {
  float v[16];
};
#define KV_LANES(expr)                          \
  V16 r;                                        \
  for (int i = 0; i < 16; ++i) r.v[i] = (expr); \
  return r
KV_INLINE V16 Zero() { KV_LANES(0.0f); }
KV_INLINE V16 Set(float x) { KV_LANES(x); }
KV_INLINE V16 Load(const float* p) { KV_LANES(p[i]); }
KV_INLINE void Store(float* p, V16 a) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
KV_INLINE V16 Fma(V16 a, V16 b, V16 c) { KV_LANES(__builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
KV_INLINE V16 Add(V16 a, V16 b) { KV_LANES(a.v[i] + b.v[i]); }
KV_INLINE V16 Sub(V16 a, V16 b) { KV_LANES(a.v[i] - b.v[i]); }
KV_INLINE V16 Mul(V16 a, V16 b) { KV_LANES(a.v[i] * b.v[i]); }
KV_INLINE V16 Div(V16 a, V16 b) { KV_LANES(a.v[i] / b.v[i]); }
KV_INLINE V16 Max(V16 a, V16 b) { KV_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
KV_INLINE V16 Min(V16 a, V16 b) { KV_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
KV_INLINE V16 RoundEven(V16 a) { KV_LANES(__builtin_rintf(a.v[i])); }
KV_INLINE V16 Pow2(V16 n) {
  KV_LANES(FloatOf(static_cast<uint32_t>(static_cast<int32_t>(n.v[i]) + 127) << 23));
}
KV_INLINE V16 TimesPow2(V16 a, V16 n) { return Mul(a, Pow2(n)); }
KV_INLINE V16 MaxMagnitude(V16 a, V16 b) {
  float x[16], y[16];
  Store(x, a);
  Store(y, b);
  for (int i = 0; i < 16; ++i) {
    const uint32_t left = BitsOf(x[i]) & 0x7fffffffu, right = BitsOf(y[i]) & 0x7fffffffu;
    x[i] = FloatOf(left > right ? left : right);
  }
  return Load(x);
}
KV_INLINE float MagnitudeLane(V16 a) {
  float lanes[16];
  Store(lanes, a);
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits = BitsOf(lanes[i]) > bits ? BitsOf(lanes[i]) : bits;
  return FloatOf(bits);
}
KV_INLINE float MaxLane(V16 a) {
  float m = a.v[0];
  for (int i = 1; i < 16; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
KV_INLINE V16 SelectLess(V16 a, V16 b, V16 yes, V16 no) {
  KV_LANES(a.v[i] < b.v[i] ? yes.v[i] : no.v[i]);
}
KV_INLINE V16 SelectLanes(uint32_t bits, V16 a, V16 b) {
  KV_LANES((bits >> i & 1) != 0 ? a.v[i] : b.v[i]);
}
KV_INLINE V16 LoadF16(const uint16_t* p) { KV_LANES(FromF16(p[i])); }
KV_INLINE V16 LoadBf16(const uint16_t* p) { KV_LANES(FromBf16(p[i])); }
KV_INLINE float SumTree(V16 a) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a.v[i] = a.v[i] + a.v[i + width];
  }
  return a.v[0];
}
#undef KV_LANES

#endif

// Sixteen stored numbers as f32, each conversion exact.
struct StoredF32 {
  static constexpr uint32_t kBytes = 4;
  static KV_INLINE V16 At(const std::byte* p) { return Load(reinterpret_cast<const float*>(p)); }
};
struct StoredF16 {
  static constexpr uint32_t kBytes = 2;
  static KV_INLINE V16 At(const std::byte* p) {
    return LoadF16(reinterpret_cast<const uint16_t*>(p));
  }
};
struct StoredBf16 {
  static constexpr uint32_t kBytes = 2;
  static KV_INLINE V16 At(const std::byte* p) {
    return LoadBf16(reinterpret_cast<const uint16_t*>(p));
  }
};

KV_INLINE uint32_t FirstLanes(uint32_t n) { return (1u << n) - 1; }  // n <= 16

// Returns the first n floats at p, zero beyond; reads no byte past them.
KV_INLINE V16 LoadFirst(uint32_t n, const float* p) {
  if (n >= 16) return Load(p);
  float lanes[16] = {};
  for (uint32_t i = 0; i < n; ++i) lanes[i] = p[i];
  return Load(lanes);
}
KV_INLINE void StoreFirst(uint32_t n, float* p, V16 a) {
  if (n >= 16) return Store(p, a);
  float lanes[16];
  Store(lanes, a);
  for (uint32_t i = 0; i < n; ++i) p[i] = lanes[i];
}

// Computes e^x, relative error below 2e-7 on [-87.3, 88.7]; +0 below -87.3, +inf above 88.722839.
// Range reduction x = n ln2 + r (Cody and Waite, 1980), |r| <= ln2/2, then the Taylor series to
// r^7.
KV_INLINE V16 ExpOfRest(V16 clamped, V16 n) {  // e^(clamped - n ln2)
  V16 r = Fma(n, Set(-0.693359375f), clamped);
  r = Fma(n, Set(2.12194440e-4f), r);
  V16 p = Set(1.0f / 5040);
  p = Fma(p, r, Set(1.0f / 720));
  p = Fma(p, r, Set(1.0f / 120));
  p = Fma(p, r, Set(1.0f / 24));
  p = Fma(p, r, Set(1.0f / 6));
  p = Fma(p, r, Set(0.5f));
  p = Fma(p, r, Set(1.0f));
  return Fma(p, r, Set(1.0f));
}
KV_INLINE V16 Exp(V16 x) {
  const V16 clamped = Min(Max(x, Set(-87.5f)), Set(88.9f));
  const V16 n = RoundEven(Mul(clamped, Set(1.44269504088896341f)));
  const V16 p = ExpOfRest(clamped, n);
  const V16 half = RoundEven(Mul(n, Set(0.5f)));  // 2^n in two factors: n may be 128
  const V16 y = Mul(Mul(p, Pow2(half)), Pow2(Sub(n, half)));
  const V16 low = SelectLess(x, Set(-87.3f), Zero(), y);
  return SelectLess(Set(88.722839f), x, Set(__builtin_inff()), low);
}
// Computes exp with the same bits for x <= 0, where 2^n is one factor: n >= -126. For softmax.
// Lanes with x > 0, which softmax ignores, give 1.
KV_INLINE V16 ExpNonPositive(V16 x) {
  const V16 clamped = Min(Max(x, Set(-87.3f)), Zero());
  const V16 n = RoundEven(Mul(clamped, Set(1.44269504088896341f)));
  return SelectLess(x, Set(-87.3f), Zero(), TimesPow2(ExpOfRest(clamped, n), n));
}

}  // namespace kvasir::KVASIR_TARGET_NS
