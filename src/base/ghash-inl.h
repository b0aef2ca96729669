// GHASH for the widest carry-less products that the including file is compiled for, in a namespace
// named after them.
//
// Field elements are in registers with their bytes reversed, so that bit 127 is the coefficient of
// x^0. The product of two such elements is shifted by one bit; the factor x in GhashPowers
// compensates. The reduction folds 64 bits twice by the polynomial's 0xc2 << 56 (as in Intel's and
// BoringSSL's GCM).
#pragma once

#if defined(__PCLMUL__)
#include <immintrin.h>

#include <cstring>

#include "base/ghash.h"

#if defined(__VPCLMULQDQ__) && defined(__AVX512BW__)
#define KVASIR_GHASH vpclmul512
#elif defined(__VPCLMULQDQ__)
#define KVASIR_GHASH vpclmul256
#else
#define KVASIR_GHASH pclmul
#endif

namespace kvasir::KVASIR_GHASH {
namespace {

// A register of kBlocks blocks.
#if defined(__VPCLMULQDQ__) && defined(__AVX512BW__)
struct Lanes {
  static constexpr size_t kBlocks = 4;
  static Lanes Zero() { return {_mm512_setzero_si512()}; }
  static Lanes Load(const uint64_t* p) { return {_mm512_load_si512(p)}; }
  static Lanes LoadReversed(const std::byte* p) {
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f));
    return {_mm512_shuffle_epi8(_mm512_loadu_si512(p), order)};
  }
  Lanes XorFirst(__m128i x) const { return {_mm512_xor_si512(v, _mm512_zextsi128_si512(x))}; }
  template <int kHalves>
  Lanes XorProduct(Lanes a, Lanes b) const {
    return {_mm512_xor_si512(v, _mm512_clmulepi64_epi128(a.v, b.v, kHalves))};
  }
  __m128i Sum() const {
    const __m256i half =
        _mm256_xor_si256(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    return _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  }

  __m512i v;
};
#elif defined(__VPCLMULQDQ__)
struct Lanes {
  static constexpr size_t kBlocks = 2;
  static Lanes Zero() { return {_mm256_setzero_si256()}; }
  static Lanes Load(const uint64_t* p) {
    return {_mm256_load_si256(reinterpret_cast<const __m256i*>(p))};
  }
  static Lanes LoadReversed(const std::byte* p) {
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f));
    return {_mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), order)};
  }
  Lanes XorFirst(__m128i x) const { return {_mm256_xor_si256(v, _mm256_zextsi128_si256(x))}; }
  template <int kHalves>
  Lanes XorProduct(Lanes a, Lanes b) const {
    return {_mm256_xor_si256(v, _mm256_clmulepi64_epi128(a.v, b.v, kHalves))};
  }
  __m128i Sum() const {
    return _mm_xor_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  }

  __m256i v;
};
#else
struct Lanes {
  static constexpr size_t kBlocks = 1;
  static Lanes Zero() { return {_mm_setzero_si128()}; }
  static Lanes Load(const uint64_t* p) {
    return {_mm_load_si128(reinterpret_cast<const __m128i*>(p))};
  }
  static Lanes LoadReversed(const std::byte* p) {
    const __m128i order = _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f);
    return {_mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), order)};
  }
  Lanes XorFirst(__m128i x) const { return {_mm_xor_si128(v, x)}; }
  template <int kHalves>
  Lanes XorProduct(Lanes a, Lanes b) const {
    return {_mm_xor_si128(v, _mm_clmulepi64_si128(a.v, b.v, kHalves))};
  }
  __m128i Sum() const { return v; }

  __m128i v;
};
#endif

// Prefetch distance: with only hardware prefetching a core reads at a third of the memory's speed.
constexpr size_t kPrefetchBytes = 4096;
constexpr size_t kGroupBytes = kGhashGroup * 16;

inline __m128i Reversed(__m128i x) {
  return _mm_shuffle_epi8(x, _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

// Returns lo + mid x^64 + hi x^128, modulo the polynomial.
inline __m128i Reduce(__m128i lo, __m128i mid, __m128i hi) {
  const __m128i polynomial = _mm_set_epi64x(static_cast<int64_t>(0xc200000000000000), 0);
  mid = _mm_xor_si128(mid, _mm_shuffle_epi32(lo, 0x4e));
  mid = _mm_xor_si128(mid, _mm_clmulepi64_si128(polynomial, lo, 0x01));
  hi = _mm_xor_si128(hi, _mm_shuffle_epi32(mid, 0x4e));
  return _mm_xor_si128(hi, _mm_clmulepi64_si128(polynomial, mid, 0x01));
}

inline __m128i Multiply(__m128i a, __m128i b) {
  const __m128i mid =
      _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x01), _mm_clmulepi64_si128(a, b, 0x10));
  return Reduce(_mm_clmulepi64_si128(a, b, 0x00), mid, _mm_clmulepi64_si128(a, b, 0x11));
}

inline __m128i PowerOf(const GhashPowers& powers, size_t i) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(powers.power[i]));
}

void Expand(const uint8_t hash_key[16], GhashPowers* powers) {
  const __m128i h = Reversed(_mm_loadu_si128(reinterpret_cast<const __m128i*>(hash_key)));
  // Multiplies by x: shifts all bits up by one and adds the polynomial if a bit falls out.
  const __m128i out = _mm_srai_epi32(_mm_shuffle_epi32(h, 0xd3), 31);
  const __m128i carries = _mm_set_epi64x(static_cast<int64_t>(0xc200000000000001), 1);
  const __m128i first = _mm_xor_si128(_mm_add_epi64(h, h), _mm_and_si128(out, carries));
  __m128i power = first;
  for (size_t i = kGhashGroup; i-- > 0; power = Multiply(power, first)) {
    _mm_store_si128(reinterpret_cast<__m128i*>(powers->power[i]), power);
  }
}

// Returns the state after one more group of blocks.
inline __m128i HashGroup(const GhashPowers& powers, __m128i state, const std::byte* bytes) {
  constexpr size_t kStep = Lanes::kBlocks * 16;
  for (size_t at = 0; at < kGroupBytes; at += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(bytes) + kPrefetchBytes + at, _MM_HINT_T0);
  }
  Lanes lo = Lanes::Zero(), mid = lo, hi = lo;
  // Backwards, so that the block that needs the last group's state comes last.
#pragma GCC unroll 32
  for (size_t at = kGroupBytes; at > 0;) {
    at -= kStep;
    Lanes x = Lanes::LoadReversed(bytes + at);
    if (at == 0) x = x.XorFirst(state);
    const Lanes power = Lanes::Load(powers.power[at / 16]);
    lo = lo.XorProduct<0x00>(x, power);
    mid = mid.XorProduct<0x01>(x, power).XorProduct<0x10>(x, power);
    hi = hi.XorProduct<0x11>(x, power);
  }
  return Reduce(lo.Sum(), mid.Sum(), hi.Sum());
}

void Hash(const GhashPowers& powers, const std::byte* bytes, size_t size, uint8_t out[16]) {
  const __m128i bits = _mm_set_epi64x(static_cast<int64_t>(uint64_t{size} * 8), 0);
  const __m128i power = PowerOf(powers, kGhashGroup - 1);
  __m128i state = _mm_setzero_si128();
  for (; size >= kGroupBytes; bytes += kGroupBytes, size -= kGroupBytes) {
    state = HashGroup(powers, state, bytes);
  }
  for (; size >= 16; bytes += 16, size -= 16) {
    const __m128i x = Reversed(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    state = Multiply(_mm_xor_si128(state, x), power);
  }
  if (size > 0) {
    alignas(16) uint8_t last[16] = {};
    std::memcpy(last, bytes, size);
    const __m128i x = Reversed(_mm_load_si128(reinterpret_cast<const __m128i*>(last)));
    state = Multiply(_mm_xor_si128(state, x), power);
  }
  state = Multiply(_mm_xor_si128(state, bits), power);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), Reversed(state));
}

}  // namespace

const GhashKernels kGhash = {&Expand, &Hash};

}  // namespace kvasir::KVASIR_GHASH

#undef KVASIR_GHASH
#endif  // __PCLMUL__
