// The lanes of attention/kernels.h, compiled once per target. Query x key has lanes = tokens (K
// lies transposed in tiles of 16), weights x value has lanes = head dims; only the sum of a span's
// weights crosses lanes, through one tree. Tokens at or beyond a query's limit are skipped.
#pragma once

#include "attention/kernels.h"
#include "simd/vec16-inl.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

#if KVASIR_TARGET_ID == 2
constexpr int kWidth = 8;  // queries in flight: registers allow 8 sums and their operands
#elif KVASIR_TARGET_ID == 1
constexpr int kWidth = 6;
#else
constexpr int kWidth = 2;
#endif
constexpr uint32_t kMaxValueStride = 512;
constexpr uint32_t kSubs = kAttentionTile / kTileTokens;
const float kMinusInfinity = -__builtin_inff();

// One query's softmax over one span.
struct SpanState {
  float m;
  V16 lanes;
  alignas(64) float acc[kMaxValueStride];
};

// Where a tile of 64 tokens lies: K and V of its four runs of 16.
struct Tile {
  const std::byte* k[kSubs];
  const std::byte* v[kSubs];
  uint32_t n;  // tokens that the queries at hand see, 1..64
};

Tile Locate(const PagedKv& kv, uint32_t head, uint32_t first_token, uint32_t n) {
  const uint32_t runs = kv.block_tokens / kTileTokens;
  const uint64_t k_run = KvBytes(kv.k_format, uint64_t{kv.head_dim} * kTileTokens);
  const uint64_t v_run = KvBytes(kv.v_format, uint64_t{kv.value_stride} * kTileTokens);
  Tile tile{};
  tile.n = n;
  for (uint32_t j = 0; j * kTileTokens < n; ++j) {
    const uint32_t run = first_token / kTileTokens + j;
    const std::byte* base = kv.blocks[run / runs];
    const uint64_t index = uint64_t{head} * runs + run % runs;
    tile.k[j] = base + kv.key_offset + index * k_run;
    tile.v[j] = base + kv.value_offset + index * v_run;
  }
  return tile;
}

// score[i][run * 16 + lane] for kRuns runs from `run`: kN * kRuns independent sums over head_dim.
template <class K, int kN, int kRuns>
KV_INLINE void Scores(const Tile& tile, uint32_t run, const float* const* q, uint32_t head_dim,
                      float (*score)[kAttentionTile]) {
  V16 sum[kN][kRuns];
  for (int i = 0; i < kN; ++i) {
    for (int j = 0; j < kRuns; ++j) sum[i][j] = Zero();
  }
  for (uint32_t d = 0; d < head_dim; ++d) {
    V16 key[kRuns];
    for (int j = 0; j < kRuns; ++j) key[j] = K::At(tile.k[run + j] + size_t{d} * 16 * K::kBytes);
    for (int i = 0; i < kN; ++i) {
      const V16 qd = Set(q[i][d]);
      for (int j = 0; j < kRuns; ++j) sum[i][j] = Fma(qd, key[j], sum[i][j]);
    }
  }
  for (int i = 0; i < kN; ++i) {
    for (int j = 0; j < kRuns; ++j) Store(score[i] + (run + j) * 16, sum[i][j]);
  }
}

// Turns a tile's scores into weights relative to the span's maximum, which may grow.
KV_INLINE void Weigh(SpanState& state, float* score, uint32_t n, uint32_t value_stride) {
  V16 top = Set(kMinusInfinity);
  for (uint32_t j = 0; j < n; j += 16) {
    const uint32_t valid = n - j < 16 ? n - j : 16;
    top = Max(SelectFirst(valid, Load(score + j), Set(kMinusInfinity)), top);
  }
  const float tile_max = MaxLane(top);
  if (tile_max > state.m) {
    if (state.m > kMinusInfinity) {
      const V16 shrink = Exp(Sub(Set(state.m), Set(tile_max)));
      state.lanes = Mul(state.lanes, shrink);
      for (uint32_t i = 0; i < value_stride; i += 16) {
        Store(state.acc + i, Mul(Load(state.acc + i), shrink));
      }
    }
    state.m = tile_max;
  }
  const V16 m = Set(state.m);
  for (uint32_t j = 0; j < n; j += 16) {
    const uint32_t valid = n - j < 16 ? n - j : 16;
    const V16 s = Load(score + j);
    // s - s: 0, or NaN where the score overflowed, since Exp and Max would turn it into a number.
    const V16 weight = SelectFirst(valid, Add(Exp(Sub(s, m)), Sub(s, s)), Zero());
    state.lanes = Add(state.lanes, weight);
    Store(score + j, weight);
  }
}

// acc[i][dims] += weight[i][t] * v[t][dims], t in order, for kDims * 16 dims from `dim`.
template <class V, int kN, int kDims>
KV_INLINE void Accumulate(const Tile& tile, uint32_t dim, uint32_t value_stride,
                          float (*weight)[kAttentionTile], SpanState* const* state) {
  V16 sum[kN][kDims];
  for (int i = 0; i < kN; ++i) {
    for (int g = 0; g < kDims; ++g) sum[i][g] = Load(state[i]->acc + dim + g * 16);
  }
  for (uint32_t t = 0; t < tile.n; ++t) {
    const std::byte* row = tile.v[t / 16] + (size_t{t % 16} * value_stride + dim) * V::kBytes;
    V16 value[kDims];
    for (int g = 0; g < kDims; ++g) value[g] = V::At(row + g * 16 * V::kBytes);
    for (int i = 0; i < kN; ++i) {
      const V16 w = Set(weight[i][t]);
      for (int g = 0; g < kDims; ++g) sum[i][g] = Fma(w, value[g], sum[i][g]);
    }
  }
  for (int i = 0; i < kN; ++i) {
    for (int g = 0; g < kDims; ++g) Store(state[i]->acc + dim + g * 16, sum[i][g]);
  }
}

// All runs of a tile for exactly kN queries; several runs at once where few queries leave
// registers.
template <class K, int kN>
void TileScores(const Tile& tile, const float* const* q, uint32_t head_dim,
                float (*score)[kAttentionTile]) {
  constexpr int kRuns = kN <= 2 ? 4 : kN <= 4 ? 2 : 1;
  const uint32_t runs = (tile.n + 15) / 16;
  uint32_t run = 0;
  for (; run + kRuns <= runs; run += kRuns) Scores<K, kN, kRuns>(tile, run, q, head_dim, score);
  for (; run < runs; ++run) Scores<K, kN, 1>(tile, run, q, head_dim, score);
}
template <class V, int kN>
void TileValues(const Tile& tile, uint32_t value_stride, float (*weight)[kAttentionTile],
                SpanState* const* state) {
  constexpr int kDims = kN <= 2 ? 4 : kN <= 4 ? 2 : 1;
  uint32_t dim = 0;
  for (; dim + kDims * 16 <= value_stride; dim += kDims * 16) {
    Accumulate<V, kN, kDims>(tile, dim, value_stride, weight, state);
  }
  for (; dim < value_stride; dim += 16)
    Accumulate<V, kN, 1>(tile, dim, value_stride, weight, state);
}

// The instance for n queries, 1 <= n <= kN.
template <class K, int kN = kWidth>
KV_INLINE void ScoresOf(uint32_t n, const Tile& tile, const float* const* q, uint32_t head_dim,
                        float (*score)[kAttentionTile]) {
  if (n == kN) return TileScores<K, kN>(tile, q, head_dim, score);
  if constexpr (kN > 1) ScoresOf<K, kN - 1>(n, tile, q, head_dim, score);
}
template <class V, int kN = kWidth>
KV_INLINE void ValuesOf(uint32_t n, const Tile& tile, uint32_t value_stride,
                        float (*weight)[kAttentionTile], SpanState* const* state) {
  if (n == kN) return TileValues<V, kN>(tile, value_stride, weight, state);
  if constexpr (kN > 1) ValuesOf<V, kN - 1>(n, tile, value_stride, weight, state);
}

// One tile for up to kWidth queries that see the same tokens of it.
void TileStep(const PagedKv& kv, const Tile& tile, uint32_t count, const float* const* q,
              SpanState* const* state) {
  alignas(64) float score[kWidth][kAttentionTile];
  switch (kv.k_format) {
    case KvFormat::kF32:
      ScoresOf<StoredF32>(count, tile, q, kv.head_dim, score);
      break;
    case KvFormat::kF16:
      ScoresOf<StoredF16>(count, tile, q, kv.head_dim, score);
      break;
    case KvFormat::kBf16:
      ScoresOf<StoredBf16>(count, tile, q, kv.head_dim, score);
      break;
  }
  for (uint32_t i = 0; i < count; ++i) Weigh(*state[i], score[i], tile.n, kv.value_stride);
  switch (kv.v_format) {
    case KvFormat::kF32:
      ValuesOf<StoredF32>(count, tile, kv.value_stride, score, state);
      break;
    case KvFormat::kF16:
      ValuesOf<StoredF16>(count, tile, kv.value_stride, score, state);
      break;
    case KvFormat::kBf16:
      ValuesOf<StoredBf16>(count, tile, kv.value_stride, score, state);
      break;
  }
}

void Merge(float* a, const float* b, uint32_t value_stride) {
  float* a_m = a + value_stride;
  const float* b_m = b + value_stride;
  if (b_m[1] == 0.0f) return;  // b saw no token
  if (a_m[1] == 0.0f) {
    for (uint32_t i = 0; i < value_stride + 2; ++i) a[i] = b[i];
    return;
  }
  const float m = a_m[0] > b_m[0] ? a_m[0] : b_m[0];
  const V16 ea = Exp(Sub(Set(a_m[0]), Set(m))), eb = Exp(Sub(Set(b_m[0]), Set(m)));
  for (uint32_t i = 0; i < value_stride; i += 16) {
    Store(a + i, Fma(Load(b + i), eb, Mul(Load(a + i), ea)));
  }
  float l[16];
  Store(l, Fma(Set(b_m[1]), eb, Mul(Set(a_m[1]), ea)));
  a_m[0] = m;
  a_m[1] = l[0];
}

void Attend(const AttentionKernels::Args& a) {
  const PagedKv& kv = *a.kv;
  SpanState states[kMaxQueries];
  float merged[kMaxValueStride + 2];
  for (uint32_t span = a.span_begin; span < a.span_end; ++span) {
    const uint32_t begin = span * kAttentionSpan;
    uint32_t first = 0;  // the first query that sees anything of this span
    while (first < a.count && a.limit[first] <= begin) ++first;
    if (first == a.count) break;
    for (uint32_t i = first; i < a.count; ++i) {
      states[i].m = kMinusInfinity;
      states[i].lanes = Zero();
      for (uint32_t j = 0; j < kv.value_stride; ++j) states[i].acc[j] = 0.0f;
    }
    for (uint32_t token = begin; token < begin + kAttentionSpan; token += kAttentionTile) {
      while (first < a.count && a.limit[first] <= token) ++first;
      if (first == a.count) break;
      for (uint32_t i = first; i < a.count;) {
        const uint32_t left = a.limit[i] - token;
        const uint32_t n = left < kAttentionTile ? left : kAttentionTile;
        SpanState* group[kWidth];
        uint32_t size = 0;
        for (; size < kWidth && i + size < a.count; ++size) {
          const uint32_t other = a.limit[i + size] - token;
          if ((other < kAttentionTile ? other : kAttentionTile) != n) break;
          group[size] = &states[i + size];
        }
        TileStep(kv, Locate(kv, a.kv_head, token, n), size, a.q + i, group);
        i += size;
      }
    }
    for (uint32_t i = 0; i < a.count; ++i) {
      if (a.limit[i] <= begin) continue;
      for (uint32_t j = 0; j < kv.value_stride; ++j) merged[j] = states[i].acc[j];
      merged[kv.value_stride] = states[i].m;
      merged[kv.value_stride + 1] = SumTree(states[i].lanes);
      Merge(a.partial[i], merged, kv.value_stride);
    }
  }
}

void Finish(const float* partial, uint32_t head_dim, uint32_t value_stride, float* out) {
  const V16 l = Set(partial[value_stride + 1]);
  for (uint32_t i = 0; i < head_dim; i += 16) {
    const uint32_t n = head_dim - i < 16 ? head_dim - i : 16;
    StoreFirst(n, out + i, Div(Load(partial + i), l));
  }
}

void Scale(const float* q, float scale, uint32_t n, float* out) {
  for (uint32_t i = 0; i < n; i += 16) {
    const uint32_t m = n - i < 16 ? n - i : 16;
    StoreFirst(m, out + i, Mul(LoadFirst(m, q + i), Set(scale)));
  }
}

}  // namespace

const AttentionKernels kAttentionKernels = {Attend, Merge, Finish, Scale};

}  // namespace kvasir::KVASIR_TARGET_NS
