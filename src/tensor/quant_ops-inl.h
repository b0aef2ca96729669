// The operations of quant-inl.h: 64 bytes of codes (16 outputs x 4 columns), 16 int32 sums, and the
// exact dot products of both with four broadcast activations. KVASIR_VNNI: 1 where the target sums
// products straight into int32; else int16 sums, which the formats keep in range.
#pragma once

#ifndef KVASIR_TARGET_ID  // when a tool reads this file alone
#define KVASIR_TARGET_NS scalar
#define KVASIR_TARGET_ID 0
#define KVASIR_VNNI 1
#endif
#include "simd/vec16-inl.h"
#include "tensor/weight_format.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

#if KVASIR_TARGET_ID == 2

struct Bytes {
  __m512i v;
};
struct Ints {
  __m512i v;
};
using Shorts = Ints;
using Quad = Bytes;  // four activations in each of 16 lanes
KV_INLINE Bytes LoadBytes(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
KV_INLINE void StoreBytes(std::byte* p, Bytes b) { _mm512_storeu_si512(p, b.v); }
KV_INLINE Bytes Or(Bytes a, Bytes b) { return {_mm512_or_si512(a.v, b.v)}; }
KV_INLINE Bytes SubBytes(Bytes a, Bytes b) { return {_mm512_sub_epi8(a.v, b.v)}; }
KV_INLINE Bytes SetBytes(int8_t x) { return {_mm512_set1_epi8(x)}; }
KV_INLINE Bytes FlipSign(Bytes a) {
  return {_mm512_xor_si512(a.v, _mm512_set1_epi8(static_cast<char>(0x80)))};
}
// ((a << kLeft) or >> -kLeft) & mask, bits staying in their byte under the mask.
template <int kLeft>
KV_INLINE Bytes ShiftMask(Bytes a, int mask) {
  const __m512i m = _mm512_set1_epi8(static_cast<char>(mask));
  if constexpr (kLeft >= 0) return {_mm512_and_si512(_mm512_slli_epi16(a.v, kLeft), m)};
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, kLeft < 0 ? -kLeft : 0), m)};
}
KV_INLINE Bytes LookUp(const int8_t* table16, Bytes index) {
  const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table16));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), index.v)};
}
KV_INLINE Quad LoadQuad(const int8_t* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return {_mm512_set1_epi32(x)};
}
KV_INLINE Ints SetInts(const int32_t* p) { return {_mm512_set1_epi32(*p)}; }
KV_INLINE V16 ToFloats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
KV_INLINE V16 LoadInts(const int32_t* p) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))}; }
KV_INLINE V16 LoadU8(const std::byte* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
KV_INLINE V16 LoadI8(const std::byte* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
KV_INLINE void StoreI8(int8_t* p, V16 rounded) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(rounded.v)));
}
#if KVASIR_VNNI
KV_INLINE Ints Dot(Ints sum, Bytes codes, Quad a) {
  return {_mm512_dpbusd_epi32(sum.v, codes.v, a.v)};
}
#else
KV_INLINE Shorts MulShorts(Bytes codes, Quad a) { return {_mm512_maddubs_epi16(codes.v, a.v)}; }
KV_INLINE Shorts AddShorts(Shorts a, Shorts b) { return {_mm512_add_epi16(a.v, b.v)}; }
KV_INLINE Ints AddPairs(Ints sum, Shorts s) {
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(s.v, _mm512_set1_epi16(1)))};
}
KV_INLINE Bytes AbsBytes(Bytes a) { return {_mm512_abs_epi8(a.v)}; }
// a with the sign of `codes`, where codes = 0 whatever: |codes| multiplies it.
KV_INLINE Quad WithSign(Quad a, Bytes codes) {
  return {_mm512_mask_sub_epi8(a.v, _mm512_movepi8_mask(codes.v), _mm512_setzero_si512(), a.v)};
}
#endif

#elif KVASIR_TARGET_ID == 1

struct Bytes {
  __m256i lo, hi;
};
struct Ints {
  __m256i lo, hi;
};
using Shorts = Ints;
struct Quad {
  __m256i v;
};
KV_INLINE const __m256i* Vectors(const void* p) { return static_cast<const __m256i*>(p); }
KV_INLINE Bytes LoadBytes(const std::byte* p) {
  return {_mm256_loadu_si256(Vectors(p)), _mm256_loadu_si256(Vectors(p) + 1)};
}
KV_INLINE void StoreBytes(std::byte* p, Bytes b) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(p), b.lo);
  _mm256_store_si256(reinterpret_cast<__m256i*>(p) + 1, b.hi);
}
KV_INLINE Bytes Or(Bytes a, Bytes b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
KV_INLINE Bytes FlipSign(Bytes a) {
  const __m256i sign = _mm256_set1_epi8(static_cast<char>(0x80));
  return {_mm256_xor_si256(a.lo, sign), _mm256_xor_si256(a.hi, sign)};
}
template <int kLeft>
KV_INLINE Bytes ShiftMask(Bytes a, int mask) {
  const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
  if constexpr (kLeft >= 0) {
    return {_mm256_and_si256(_mm256_slli_epi16(a.lo, kLeft), m),
            _mm256_and_si256(_mm256_slli_epi16(a.hi, kLeft), m)};
  }
  constexpr int kRight = kLeft < 0 ? -kLeft : 0;
  return {_mm256_and_si256(_mm256_srli_epi16(a.lo, kRight), m),
          _mm256_and_si256(_mm256_srli_epi16(a.hi, kRight), m)};
}
KV_INLINE Bytes LookUp(const int8_t* table16, Bytes index) {
  const __m256i t =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table16)));
  return {_mm256_shuffle_epi8(t, index.lo), _mm256_shuffle_epi8(t, index.hi)};
}
KV_INLINE Quad LoadQuad(const int8_t* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return {_mm256_set1_epi32(x)};
}
KV_INLINE Ints SetInts(const int32_t* p) { return {_mm256_set1_epi32(*p), _mm256_set1_epi32(*p)}; }
KV_INLINE V16 ToFloats(Ints a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
KV_INLINE __m128i LoadEight(const std::byte* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
KV_INLINE V16 LoadU8(const std::byte* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(LoadEight(p))),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(LoadEight(p + 8)))};
}
KV_INLINE V16 LoadI8(const std::byte* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(LoadEight(p))),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(LoadEight(p + 8)))};
}
KV_INLINE void StoreI8(int8_t* p, V16 rounded) {
  const __m256i s =
      _mm256_packs_epi32(_mm256_cvtps_epi32(rounded.lo), _mm256_cvtps_epi32(rounded.hi));
  const __m256i ordered = _mm256_permute4x64_epi64(s, 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}
#if KVASIR_VNNI
KV_INLINE Ints Dot(Ints sum, Bytes codes, Quad a) {
  return {_mm256_dpbusd_avx_epi32(sum.lo, codes.lo, a.v),
          _mm256_dpbusd_avx_epi32(sum.hi, codes.hi, a.v)};
}
#else
KV_INLINE Shorts MulShorts(Bytes codes, Quad a) {
  return {_mm256_maddubs_epi16(codes.lo, a.v), _mm256_maddubs_epi16(codes.hi, a.v)};
}
KV_INLINE Shorts MulShorts(Bytes codes, Bytes a) {
  return {_mm256_maddubs_epi16(codes.lo, a.lo), _mm256_maddubs_epi16(codes.hi, a.hi)};
}
KV_INLINE Shorts AddShorts(Shorts a, Shorts b) {
  return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)};
}
KV_INLINE Ints AddPairs(Ints sum, Shorts s) {
  const __m256i one = _mm256_set1_epi16(1);
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(s.lo, one)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(s.hi, one))};
}
KV_INLINE Bytes AbsBytes(Bytes a) { return {_mm256_abs_epi8(a.lo), _mm256_abs_epi8(a.hi)}; }
KV_INLINE Bytes WithSign(Quad a, Bytes codes) {
  return {_mm256_sign_epi8(a.v, codes.lo), _mm256_sign_epi8(a.v, codes.hi)};
}
#endif

#elif KVASIR_TARGET_ID == 3

struct Bytes {
  uint8x16_t v[4];
};
struct Ints {
  int32x4_t v[4];
};
using Shorts = Ints;
struct Quad {
  int8x16_t v;
};
#define KV_EACH(Type, expr)                    \
  Type r;                                      \
  for (int i = 0; i < 4; ++i) r.v[i] = (expr); \
  return r
KV_INLINE Bytes LoadBytes(const std::byte* p) {
  KV_EACH(Bytes, vld1q_u8(reinterpret_cast<const uint8_t*>(p) + i * 16));
}
KV_INLINE void StoreBytes(std::byte* p, Bytes b) {
  for (int i = 0; i < 4; ++i) vst1q_u8(reinterpret_cast<uint8_t*>(p) + i * 16, b.v[i]);
}
KV_INLINE Bytes Or(Bytes a, Bytes b) { KV_EACH(Bytes, vorrq_u8(a.v[i], b.v[i])); }
KV_INLINE Bytes FlipSign(Bytes a) { KV_EACH(Bytes, veorq_u8(a.v[i], vdupq_n_u8(0x80))); }
template <int kLeft>
KV_INLINE Bytes ShiftMask(Bytes a, int mask) {
  KV_EACH(Bytes,
          vandq_u8(vshlq_u8(a.v[i], vdupq_n_s8(kLeft)), vdupq_n_u8(static_cast<uint8_t>(mask))));
}
KV_INLINE Bytes LookUp(const int8_t* table16, Bytes index) {
  const uint8x16_t t = vreinterpretq_u8_s8(vld1q_s8(table16));
  KV_EACH(Bytes, vqtbl1q_u8(t, index.v[i]));
}
KV_INLINE Quad LoadQuad(const int8_t* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return {vreinterpretq_s8_s32(vdupq_n_s32(x))};
}
KV_INLINE Ints SetInts(const int32_t* p) { KV_EACH(Ints, vdupq_n_s32(*p)); }
KV_INLINE V16 ToFloats(Ints a) { KV_EACH(V16, vcvtq_f32_s32(a.v[i])); }
KV_INLINE V16 LoadU8(const std::byte* p) {
  const uint8x16_t b = vld1q_u8(reinterpret_cast<const uint8_t*>(p));
  const uint16x8_t h[2] = {vmovl_u8(vget_low_u8(b)), vmovl_u8(vget_high_u8(b))};
  KV_EACH(V16,
          vcvtq_f32_u32(vmovl_u16(i % 2 == 0 ? vget_low_u16(h[i / 2]) : vget_high_u16(h[i / 2]))));
}
KV_INLINE V16 LoadI8(const std::byte* p) {
  const int8x16_t b = vld1q_s8(reinterpret_cast<const int8_t*>(p));
  const int16x8_t h[2] = {vmovl_s8(vget_low_s8(b)), vmovl_s8(vget_high_s8(b))};
  KV_EACH(V16,
          vcvtq_f32_s32(vmovl_s16(i % 2 == 0 ? vget_low_s16(h[i / 2]) : vget_high_s16(h[i / 2]))));
}
KV_INLINE void StoreI8(int8_t* p, V16 rounded) {
  for (int i = 0; i < 4; ++i) {
    const int16x4_t h = vmovn_s32(vcvtq_s32_f32(rounded.v[i]));
    const int8x8_t b = vmovn_s16(vcombine_s16(h, h));
    vst1_lane_s32(reinterpret_cast<int32_t*>(p + i * 4), vreinterpret_s32_s8(b), 0);
  }
}
// sdot: both signed, so that signed codes stay as they are.
KV_INLINE Ints Dot(Ints sum, Bytes codes, Quad a) {
  KV_EACH(Ints, vdotq_s32(sum.v[i], vreinterpretq_s8_u8(codes.v[i]), a.v));
}
#undef KV_EACH

#else  // scalar

struct Bytes {
  uint8_t b[64];
};
struct Ints {
  int32_t v[16];
};
using Shorts = Ints;
struct Quad {
  int8_t a[4];
};
#define KV_BYTES(expr)                                              \
  Bytes r;                                                          \
  for (int i = 0; i < 64; ++i) r.b[i] = static_cast<uint8_t>(expr); \
  return r
KV_INLINE Bytes LoadBytes(const std::byte* p) { KV_BYTES(p[i]); }
KV_INLINE void StoreBytes(std::byte* p, Bytes b) { __builtin_memcpy(p, b.b, 64); }
KV_INLINE Bytes Or(Bytes a, Bytes b) { KV_BYTES(a.b[i] | b.b[i]); }
KV_INLINE Bytes SubBytes(Bytes a, Bytes b) { KV_BYTES(a.b[i] - b.b[i]); }
KV_INLINE Bytes SetBytes(int8_t x) { KV_BYTES(x); }
KV_INLINE Bytes FlipSign(Bytes a) { KV_BYTES(a.b[i] ^ 0x80); }
template <int kLeft>
KV_INLINE Bytes ShiftMask(Bytes a, int mask) {
  if constexpr (kLeft >= 0) {
    KV_BYTES(a.b[i] << kLeft & mask);
  } else {
    KV_BYTES(a.b[i] >> -kLeft & mask);
  }
}
KV_INLINE Bytes LookUp(const int8_t* table16, Bytes index) { KV_BYTES(table16[index.b[i]]); }
KV_INLINE Quad LoadQuad(const int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
KV_INLINE Ints SetInts(const int32_t* p) {
  Ints r;
  for (int i = 0; i < 16; ++i) r.v[i] = *p;
  return r;
}
KV_INLINE V16 ToFloats(Ints a) {
  V16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(a.v[i]);
  return r;
}
KV_INLINE V16 LoadInts(const int32_t* p) {
  V16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(p[i]);
  return r;
}
KV_INLINE V16 LoadU8(const std::byte* p) {
  V16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(static_cast<uint8_t>(p[i]));
  return r;
}
KV_INLINE V16 LoadI8(const std::byte* p) {
  V16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(static_cast<int8_t>(p[i]));
  return r;
}
KV_INLINE void StoreI8(int8_t* p, V16 rounded) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(static_cast<int32_t>(rounded.v[i]));
}
KV_INLINE Ints Dot(Ints sum, Bytes codes, Quad a) {  // as VNNI does
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 4; ++j) sum.v[i] += codes.b[i * 4 + j] * a.a[j];
  }
  return sum;
}

#endif

}  // namespace
}  // namespace kvasir::KVASIR_TARGET_NS
