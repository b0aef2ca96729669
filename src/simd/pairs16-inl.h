// P16 and I16: the integer lanes beside V16. A P16 holds sixteen pairs of int16, an I16 sixteen
// int32 sums of products of pairs. They are exact, so all targets and orders give the same result.
// Included by sources that define the macros of simd/vec16-inl.h.
#pragma once

#include "simd/vec16-inl.h"

namespace kvasir::KVASIR_TARGET_NS {

#if KVASIR_TARGET_ID == 2

struct P16 {
  __m512i v;
};
struct I16 {
  __m512i v;
};
KV_INLINE I16 ZeroI() { return {_mm512_setzero_si512()}; }
KV_INLINE I16 LoadI(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
KV_INLINE void StoreI(int32_t* p, I16 a) { _mm512_storeu_si512(p, a.v); }
KV_INLINE P16 LoadPairs(const void* p) { return {_mm512_loadu_si512(p)}; }
KV_INLINE void StorePairs(void* p, P16 a) { _mm512_storeu_si512(p, a.v); }
// Returns the pair at p in every lane.
KV_INLINE P16 SetPair(const int16_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, 4);
  return {_mm512_set1_epi32(pair)};
}
// c + a.first * b.first + a.second * b.second, lane by lane.
KV_INLINE I16 Dot(P16 a, P16 b, I16 c) {
#ifdef __AVX512VNNI__
  return {_mm512_dpwssd_epi32(c.v, a.v, b.v)};
#else
  return {_mm512_add_epi32(c.v, _mm512_madd_epi16(a.v, b.v))};
#endif
}
KV_INLINE I16 SubI(I16 a, int32_t b) { return {_mm512_sub_epi32(a.v, _mm512_set1_epi32(b))}; }
KV_INLINE V16 ToFloat(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
// Returns integral numbers of int16's range.
KV_INLINE void StoreInt16(int16_t* p, V16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a.v)));
}
KV_INLINE P16 PairsOfBytes(const std::byte* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
KV_INLINE void PairsOfKeyNibbles(const std::byte* p, P16* out) {
  const __m512i w = _mm512_loadu_si512(p), mask = _mm512_set1_epi16(15);
  out[0] = {_mm512_and_si512(w, mask)};
  out[1] = {_mm512_and_si512(_mm512_srli_epi16(w, 4), mask)};
  out[2] = {_mm512_and_si512(_mm512_srli_epi16(w, 8), mask)};
  out[3] = {_mm512_srli_epi16(w, 12)};
}
KV_INLINE void PairsOfKeyLevels(const std::byte* p, const int8_t* levels, P16* out) {
  const __m512i w = _mm512_loadu_si512(p), mask = _mm512_set1_epi8(15);
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels)));
  const __m512i low = _mm512_shuffle_epi8(table, _mm512_and_si512(w, mask));
  const __m512i high = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(w, 4), mask));
  out[0] = {_mm512_srai_epi16(_mm512_slli_epi16(low, 8), 8)};
  out[1] = {_mm512_srai_epi16(_mm512_slli_epi16(high, 8), 8)};
  out[2] = {_mm512_srai_epi16(low, 8)};
  out[3] = {_mm512_srai_epi16(high, 8)};
}
KV_INLINE void PairsOfValueNibbles(const std::byte* p, P16* out) {
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i mask = _mm256_set1_epi8(15);
  out[0] = {_mm512_cvtepu8_epi16(_mm256_and_si256(b, mask))};
  out[1] = {_mm512_cvtepu8_epi16(_mm256_and_si256(_mm256_srli_epi16(b, 4), mask))};
}
KV_INLINE void PairsOfValueLevels(const std::byte* p, const int8_t* levels, P16* out) {
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels)));
  out[0] = {_mm512_cvtepi8_epi16(_mm256_shuffle_epi8(table, _mm256_and_si256(b, mask)))};
  out[1] = {_mm512_cvtepi8_epi16(
      _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(b, 4), mask)))};
}
KV_INLINE V16 WidenHalf(__m256i h) { return {_mm512_cvtph_ps(h)}; }

#elif KVASIR_TARGET_ID == 1

struct P16 {
  __m256i lo, hi;
};
struct I16 {
  __m256i lo, hi;
};
KV_INLINE __m256i Load256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
KV_INLINE I16 ZeroI() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
KV_INLINE I16 LoadI(const int32_t* p) { return {Load256(p), Load256(p + 8)}; }
KV_INLINE void StoreI(int32_t* p, I16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
KV_INLINE P16 LoadPairs(const void* p) {
  return {Load256(p), Load256(static_cast<const std::byte*>(p) + 32)};
}
KV_INLINE void StorePairs(void* p, P16 a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, a.hi);
}
KV_INLINE P16 SetPair(const int16_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, 4);
  return {_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)};
}
KV_INLINE I16 Dot(P16 a, P16 b, I16 c) {
#ifdef __AVXVNNI__
  return {_mm256_dpwssd_avx_epi32(c.lo, a.lo, b.lo), _mm256_dpwssd_avx_epi32(c.hi, a.hi, b.hi)};
#else
  return {_mm256_add_epi32(c.lo, _mm256_madd_epi16(a.lo, b.lo)),
          _mm256_add_epi32(c.hi, _mm256_madd_epi16(a.hi, b.hi))};
#endif
}
KV_INLINE I16 SubI(I16 a, int32_t b) {
  const __m256i all = _mm256_set1_epi32(b);
  return {_mm256_sub_epi32(a.lo, all), _mm256_sub_epi32(a.hi, all)};
}
KV_INLINE V16 ToFloat(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
KV_INLINE void StoreInt16(int16_t* p, V16 a) {
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}
KV_INLINE P16 WidenSigned(__m256i b) {
  return {_mm256_cvtepi8_epi16(_mm256_castsi256_si128(b)),
          _mm256_cvtepi8_epi16(_mm256_extracti128_si256(b, 1))};
}
KV_INLINE P16 WidenUnsigned(__m256i b) {
  return {_mm256_cvtepu8_epi16(_mm256_castsi256_si128(b)),
          _mm256_cvtepu8_epi16(_mm256_extracti128_si256(b, 1))};
}
KV_INLINE P16 PairsOfBytes(const std::byte* p) { return WidenSigned(Load256(p)); }
KV_INLINE void PairsOfKeyNibbles(const std::byte* p, P16* out) {
  const __m256i a = Load256(p), b = Load256(p + 32), mask = _mm256_set1_epi16(15);
  out[0] = {_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)};
  out[1] = {_mm256_and_si256(_mm256_srli_epi16(a, 4), mask),
            _mm256_and_si256(_mm256_srli_epi16(b, 4), mask)};
  out[2] = {_mm256_and_si256(_mm256_srli_epi16(a, 8), mask),
            _mm256_and_si256(_mm256_srli_epi16(b, 8), mask)};
  out[3] = {_mm256_srli_epi16(a, 12), _mm256_srli_epi16(b, 12)};
}
KV_INLINE __m256i Levels(__m256i table, __m256i nibbles) {
  return _mm256_shuffle_epi8(table, _mm256_and_si256(nibbles, _mm256_set1_epi8(15)));
}
KV_INLINE __m256i EvenBytes(__m256i a) { return _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8); }
KV_INLINE __m256i TableOf(const int8_t* levels) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels)));
}
KV_INLINE void PairsOfKeyLevels(const std::byte* p, const int8_t* levels, P16* out) {
  const __m256i a = Load256(p), b = Load256(p + 32), table = TableOf(levels);
  const __m256i low_a = Levels(table, a), high_a = Levels(table, _mm256_srli_epi16(a, 4));
  const __m256i low_b = Levels(table, b), high_b = Levels(table, _mm256_srli_epi16(b, 4));
  out[0] = {EvenBytes(low_a), EvenBytes(low_b)};
  out[1] = {EvenBytes(high_a), EvenBytes(high_b)};
  out[2] = {_mm256_srai_epi16(low_a, 8), _mm256_srai_epi16(low_b, 8)};
  out[3] = {_mm256_srai_epi16(high_a, 8), _mm256_srai_epi16(high_b, 8)};
}
KV_INLINE void PairsOfValueNibbles(const std::byte* p, P16* out) {
  const __m256i b = Load256(p), mask = _mm256_set1_epi8(15);
  out[0] = WidenUnsigned(_mm256_and_si256(b, mask));
  out[1] = WidenUnsigned(_mm256_and_si256(_mm256_srli_epi16(b, 4), mask));
}
KV_INLINE void PairsOfValueLevels(const std::byte* p, const int8_t* levels, P16* out) {
  const __m256i b = Load256(p), table = TableOf(levels);
  out[0] = WidenSigned(Levels(table, b));
  out[1] = WidenSigned(Levels(table, _mm256_srli_epi16(b, 4)));
}
KV_INLINE V16 WidenHalf(__m256i h) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}

#else  // plain loops, on NEON too

struct P16 {
  int16_t v[32];
};
struct I16 {
  int32_t v[16];
};
KV_INLINE I16 ZeroI() { return {}; }
KV_INLINE I16 LoadI(const int32_t* p) {
  I16 r;
  __builtin_memcpy(r.v, p, 64);
  return r;
}
KV_INLINE void StoreI(int32_t* p, I16 a) { __builtin_memcpy(p, a.v, 64); }
KV_INLINE P16 LoadPairs(const void* p) {
  P16 r;
  __builtin_memcpy(r.v, p, 64);
  return r;
}
KV_INLINE void StorePairs(void* p, P16 a) { __builtin_memcpy(p, a.v, 64); }
KV_INLINE P16 SetPair(const int16_t* p) {
  P16 r;
  for (int i = 0; i < 32; ++i) r.v[i] = p[i % 2];
  return r;
}
KV_INLINE I16 Dot(P16 a, P16 b, I16 c) {
  for (int i = 0; i < 16; ++i) {
    c.v[i] += a.v[2 * i] * b.v[2 * i] + a.v[2 * i + 1] * b.v[2 * i + 1];
  }
  return c;
}
KV_INLINE I16 SubI(I16 a, int32_t b) {
  for (int i = 0; i < 16; ++i) a.v[i] -= b;
  return a;
}
KV_INLINE V16 ToFloat(I16 a) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = static_cast<float>(a.v[i]);
  return Load(lanes);
}
KV_INLINE void StoreInt16(int16_t* p, V16 a) {
  float lanes[16];
  Store(lanes, a);
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int16_t>(lanes[i]);
}
KV_INLINE int16_t NibbleAt(const std::byte* p, uint32_t shift) {
  return static_cast<int16_t>(static_cast<uint8_t>(*p) >> shift & 15);
}
KV_INLINE P16 PairsOfBytes(const std::byte* p) {
  P16 r;
  for (int i = 0; i < 32; ++i) r.v[i] = static_cast<int8_t>(p[i]);
  return r;
}
KV_INLINE void PairsOfKeyNibbles(const std::byte* p, P16* out) {
  for (int pair = 0; pair < 4; ++pair) {
    for (int i = 0; i < 32; ++i) {
      out[pair].v[i] = NibbleAt(p + i * 2 + pair / 2, static_cast<uint32_t>(pair % 2 * 4));
    }
  }
}
KV_INLINE void PairsOfKeyLevels(const std::byte* p, const int8_t* levels, P16* out) {
  PairsOfKeyNibbles(p, out);
  for (int pair = 0; pair < 4; ++pair) {
    for (int16_t& x : out[pair].v) x = levels[x];
  }
}
KV_INLINE void PairsOfValueNibbles(const std::byte* p, P16* out) {
  for (int i = 0; i < 32; ++i) {
    out[0].v[i] = NibbleAt(p + i, 0);
    out[1].v[i] = NibbleAt(p + i, 4);
  }
}
KV_INLINE void PairsOfValueLevels(const std::byte* p, const int8_t* levels, P16* out) {
  PairsOfValueNibbles(p, out);
  for (int half = 0; half < 2; ++half) {
    for (int16_t& x : out[half].v) x = levels[x];
  }
}

#endif

// Sixteen fp8 numbers as f32, exact; e4m3 as its number / 2^8 (format/codec.h).
struct StoredE5m2 {
  static constexpr uint32_t kBytes = 1;
  static KV_INLINE V16 At(const std::byte* p) {
#if KVASIR_TARGET_ID == 1 || KVASIR_TARGET_ID == 2
    const __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return WidenHalf(_mm256_slli_epi16(b, 8));
#else
    uint16_t half[16];
    for (int i = 0; i < 16; ++i) half[i] = static_cast<uint16_t>(static_cast<uint32_t>(p[i]) << 8);
    return LoadF16(half);
#endif
  }
};
struct StoredE4m3 {
  static constexpr uint32_t kBytes = 1;
  static KV_INLINE V16 At(const std::byte* p) {
#if KVASIR_TARGET_ID == 1 || KVASIR_TARGET_ID == 2
    // Sign-extended, so that bit 7 is in bits 7 to 15; shifting by 7 puts the sign before the
    // number.
    const __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i number = _mm256_slli_epi16(b, 7);
    const __m256i mask = _mm256_set1_epi16(static_cast<int16_t>(0xbfff));
    return WidenHalf(_mm256_and_si256(number, mask));
#else
    uint16_t half[16];
    for (int i = 0; i < 16; ++i) {
      const auto b = static_cast<uint32_t>(p[i]);
      half[i] = static_cast<uint16_t>((b & 0x80) << 8 | (b & 0x7f) << 7);
    }
    return LoadF16(half);
#endif
  }
};

}  // namespace kvasir::KVASIR_TARGET_NS
