// The lanes of attention over one run or tile: scores of queries against K, and sums of weights
// times V. Floats: one FMA per element in order. Integers: pairs of int16, exact.
#pragma once

#include "attention/kernels.h"
#include "format/codec.h"
#include "simd/pairs16-inl.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

// Integer K: `kPairs` pairs of dims from kBytes bytes; numbers are codes - kBias.
struct KeyInt8 {
  static constexpr int kPairs = 1, kBytes = 32, kBias = 0;
  static KV_INLINE void At(const std::byte* p, P16* out) { out[0] = PairsOfBytes(p); }
};
struct KeyInt4 {
  static constexpr int kPairs = 4, kBytes = 64, kBias = kInt4Bias;
  static KV_INLINE void At(const std::byte* p, P16* out) { PairsOfKeyNibbles(p, out); }
};
struct KeyNf4 {
  static constexpr int kPairs = 4, kBytes = 64, kBias = 0;
  static KV_INLINE void At(const std::byte* p, P16* out) { PairsOfKeyLevels(p, kNf4Levels, out); }
};
// Integer V: `kGroups` groups of 16 dims of a pair of tokens from kBytes bytes.
struct ValueInt8 {
  static constexpr int kGroups = 1, kBytes = 32, kBias = 0;
  static KV_INLINE void At(const std::byte* p, P16* out) { out[0] = PairsOfBytes(p); }
};
struct ValueInt4 {
  static constexpr int kGroups = 2, kBytes = 32, kBias = kInt4Bias;
  static KV_INLINE void At(const std::byte* p, P16* out) { PairsOfValueNibbles(p, out); }
};
struct ValueNf4 {
  static constexpr int kGroups = 2, kBytes = 32, kBias = 0;
  static KV_INLINE void At(const std::byte* p, P16* out) { PairsOfValueLevels(p, kNf4Levels, out); }
};
// Widened to int16 once for many queries.
template <int kBiasOfCodes>
struct Wide {
  static constexpr int kPairs = 1, kGroups = 1, kBytes = 64, kBias = kBiasOfCodes;
  static KV_INLINE void At(const std::byte* p, P16* out) { out[0] = LoadPairs(p); }
};

// A run of K of one kv head.
struct KeyRun {
  const std::byte* numbers;
  const uint16_t* scales;  // bf16 [16], or nullptr
  uint32_t lane;           // the run's first place in `score`
  ptrdiff_t ahead;         // from `numbers` to the bytes to prefetch, line by line
};

// V of consecutive tokens of one kv head.
struct ValueRun {
  const std::byte* numbers;
  uint32_t first, tokens;  // places in `score` or `weight`
  ptrdiff_t ahead;         // as in KeyRun
};

// Prefetches into L2, line by line between the products: many prefetches at once would fill the
// queue to memory and stop the core.
KV_INLINE void AskFor(const std::byte* p, ptrdiff_t ahead) {
  __builtin_prefetch(
      reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(ahead)),
      0, 2);
}

// score[lane, lane + 16) of kN queries against each of kRuns runs: kN * kRuns independent sums over
// head_dim. kAsk: prefetch.
template <class K, int kN, int kRuns, bool kAsk>
KV_INLINE void FloatScores(AttentionQuery* const* queries, const KeyRun* runs, uint32_t head_dim) {
  V16 sum[kRuns][kN];
  const float* q[kN];
  for (int i = 0; i < kN; ++i) q[i] = queries[i]->q;
  for (int j = 0; j < kRuns; ++j) {
    for (int i = 0; i < kN; ++i) sum[j][i] = Zero();
  }
  for (uint32_t d = 0; d < head_dim; ++d) {
    V16 key[kRuns];
    for (int j = 0; j < kRuns; ++j) {
      const std::byte* at = runs[j].numbers + size_t{d} * 16 * K::kBytes;
      key[j] = K::At(at);
      if constexpr (kAsk) AskFor(at, runs[j].ahead);
    }
    for (int i = 0; i < kN; ++i) {
      const V16 qd = Set(q[i][d]);
      for (int j = 0; j < kRuns; ++j) sum[j][i] = Fma(qd, key[j], sum[j][i]);
    }
  }
  for (int j = 0; j < kRuns; ++j) {
    for (int i = 0; i < kN; ++i) {
      V16 s = sum[j][i];
      if (runs[j].scales != nullptr) s = Mul(s, LoadBf16(runs[j].scales));
      Store(queries[i]->score + runs[j].lane, s);
    }
  }
}

template <class K, int kN, int kRuns, bool kAsk>
KV_INLINE void IntegerScores(AttentionQuery* const* queries, const KeyRun* runs,
                             uint32_t key_dims) {
  I16 sum[kRuns][kN];
  const int16_t* q[kN];
  for (int i = 0; i < kN; ++i) q[i] = queries[i]->q16;
  for (int j = 0; j < kRuns; ++j) {
    for (int i = 0; i < kN; ++i) sum[j][i] = ZeroI();
  }
  const uint32_t steps = key_dims / (2 * K::kPairs);
  for (uint32_t step = 0; step < steps; ++step) {
    P16 key[kRuns][K::kPairs];
    for (int j = 0; j < kRuns; ++j) {
      const std::byte* at = runs[j].numbers + size_t{step} * K::kBytes;
      K::At(at, key[j]);
      if constexpr (kAsk) AskFor(at, runs[j].ahead);
    }
    for (int p = 0; p < K::kPairs; ++p) {
      const uint32_t at = (step * K::kPairs + p) * 2;
      for (int i = 0; i < kN; ++i) {
        const P16 pair = SetPair(q[i] + at);
        for (int j = 0; j < kRuns; ++j) sum[j][i] = Dot(key[j][p], pair, sum[j][i]);
      }
    }
  }
  for (int j = 0; j < kRuns; ++j) {
    const V16 key_scale = LoadBf16(runs[j].scales);
    for (int i = 0; i < kN; ++i) {
      AttentionQuery& query = *queries[i];
      I16 dot = sum[j][i];
      if constexpr (K::kBias != 0) dot = SubI(dot, K::kBias * query.q_sum);
      Store(query.score + runs[j].lane, Mul(ToFloat(dot), Mul(key_scale, Set(query.q_scale))));
    }
  }
}

// acc[dims] += weight[t] * v[t][dims], t in order, of the tokens of `count` runs, whose rows are
// `stride` apart, for kDims * 16 dims from `dim`.
template <class V, int kN, int kDims>
KV_INLINE void FloatValues(AttentionQuery* const* queries, const ValueRun* runs, uint32_t count,
                           uint32_t stride, uint32_t dim) {
  V16 sum[kN][kDims];
  for (int i = 0; i < kN; ++i) {
    for (int g = 0; g < kDims; ++g) sum[i][g] = Load(queries[i]->acc + dim + g * 16);
  }
  for (const ValueRun* run = runs; run < runs + count; ++run) {
    for (uint32_t t = 0; t < run->tokens; ++t) {
      const std::byte* row = run->numbers + (size_t{t} * stride + dim) * V::kBytes;
      V16 value[kDims];
      for (int g = 0; g < kDims; ++g) value[g] = V::At(row + g * 16 * V::kBytes);
      for (uint32_t i = 0; i < kDims * 16 * uint32_t{V::kBytes}; i += 64) {
        AskFor(row + i, run->ahead);
      }
      for (int i = 0; i < kN; ++i) {
        const V16 w = Set(queries[i]->score[run->first + t]);
        for (int g = 0; g < kDims; ++g) sum[i][g] = Fma(w, value[g], sum[i][g]);
      }
    }
  }
  for (int i = 0; i < kN; ++i) {
    for (int g = 0; g < kDims; ++g) Store(queries[i]->acc + dim + g * 16, sum[i][g]);
  }
}

// Adds products of integers, from 0, into `sum`, for kSteps * V::kGroups * 16 dims; an odd last
// token's partner has weight 0.
template <class V, int kN, int kSteps>
KV_INLINE void IntegerValues(AttentionQuery* const* queries, const ValueRun* runs, uint32_t count,
                             uint32_t stride, uint32_t dim) {
  constexpr int kDims = kSteps * V::kGroups;
  constexpr uint32_t kDimsOfStep = V::kGroups * 16;
  const size_t pair_bytes = size_t{stride} / kDimsOfStep * V::kBytes;
  I16 sum[kN][kDims];
  for (int i = 0; i < kN; ++i) {
    for (int g = 0; g < kDims; ++g) sum[i][g] = ZeroI();
  }
  for (const ValueRun* run = runs; run < runs + count; ++run) {
    const std::byte* at = run->numbers + size_t{dim} / kDimsOfStep * V::kBytes;
    for (uint32_t t = 0; t < run->tokens; t += 2, at += pair_bytes) {
      P16 value[kDims];
      for (int s = 0; s < kSteps; ++s) V::At(at + s * V::kBytes, value + s * V::kGroups);
      for (int i = 0; i < kSteps * V::kBytes; i += 64) AskFor(at + i, run->ahead);
      for (int i = 0; i < kN; ++i) {
        const P16 w = SetPair(queries[i]->weight + run->first + t);
        for (int g = 0; g < kDims; ++g) sum[i][g] = Dot(w, value[g], sum[i][g]);
      }
    }
  }
  for (int i = 0; i < kN; ++i) {
    for (int g = 0; g < kDims; ++g) StoreI(queries[i]->sum + dim + g * 16, sum[i][g]);
  }
}

}  // namespace
}  // namespace kvasir::KVASIR_TARGET_NS
