// One tile of 64 tokens for all rows at hand.
//
// Two orders of work with the same bits: few rows (decode) walk all kv heads of a tile in address
// order, straight from the stored numbers, with prefetch; many rows (prefill, a shared prefix) take
// one kv head at a time, whose tile is widened once for all of them.
#pragma once

#include "attention/softmax-inl.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

template <class K, int kN, int kRunsAtOnce, bool kShared>
KV_INLINE void Scores(const KeyRun* runs, uint32_t key_dims) {
  if constexpr (requires { K::kPairs; }) {
    IntegerScores<K, kN, kRunsAtOnce, kShared>(runs, key_dims);
  } else {
    FloatScores<K, kN, kRunsAtOnce, kShared>(runs, key_dims);
  }
}

// All runs, each with its own kN queries, or all with the same.
template <class K, int kN, bool kShared>
void AllRuns(const KeyRun* runs, uint32_t count, uint32_t key_dims) {
  constexpr int kAtOnce = kShared ? kSharedRuns : RunsFor(kN);
  uint32_t i = 0;
  for (; i + kAtOnce <= count; i += kAtOnce) Scores<K, kN, kAtOnce, kShared>(runs + i, key_dims);
  for (; i < count; ++i) Scores<K, kN, 1, kShared>(runs + i, key_dims);
}
template <class K, bool kShared>
void ScoresOf(uint32_t n, const KeyRun* runs, uint32_t count, uint32_t key_dims) {
  if (n == 4) return AllRuns<K, 4, kShared>(runs, count, key_dims);
  if (n == 3) return AllRuns<K, 3, kShared>(runs, count, key_dims);
  if (n == 2) return AllRuns<K, 2, kShared>(runs, count, key_dims);
  return AllRuns<K, 1, kShared>(runs, count, key_dims);
}

// V of consecutive tokens, and the n queries that weigh them.
struct ValueRun {
  const std::byte* numbers;
  uint32_t stride, value_stride;
  uint32_t first, tokens;  // places in `score` or `weight`
  ptrdiff_t ahead = 0;     // as in KeyRun
};

template <class V, int kN>
void ValuesOfN(const ValueRun& run, AttentionQuery* const* queries) {
  uint32_t dim = 0;
  if constexpr (requires { V::kGroups; }) {
    constexpr int kSteps = DimsFor(kN) / V::kGroups > 0 ? DimsFor(kN) / V::kGroups : 1;
    constexpr uint32_t kAtOnce = kSteps * V::kGroups * 16;
    for (; dim + kAtOnce <= run.value_stride; dim += kAtOnce) {
      IntegerValues<V, kN, kSteps>(run.numbers, run.ahead, run.stride, dim, run.first, run.tokens,
                                   queries);
    }
    for (; dim < run.value_stride; dim += V::kGroups * 16) {
      IntegerValues<V, kN, 1>(run.numbers, run.ahead, run.stride, dim, run.first, run.tokens,
                              queries);
    }
  } else {
    constexpr int kAtOnce = DimsFor(kN);
    for (; dim + kAtOnce * 16 <= run.value_stride; dim += kAtOnce * 16) {
      FloatValues<V, kN, kAtOnce>(run.numbers, run.ahead, run.stride, dim, run.first, run.tokens,
                                  queries);
    }
    for (; dim < run.value_stride; dim += 16) {
      FloatValues<V, kN, 1>(run.numbers, run.ahead, run.stride, dim, run.first, run.tokens,
                            queries);
    }
  }
}
template <class V>
void AllValuesOf(uint32_t n, const ValueRun& run, AttentionQuery* const* queries) {
#if KVASIR_TARGET_ID == 1
  if constexpr (requires { V::kGroups; }) {
    if (V::kGroups == 2 && n > 2) {  // registers: four queries times two groups are too many
      ValuesOfN<V, 2>(run, queries);
      return AllValuesOf<V>(n - 2, run, queries + 2);
    }
  }
#endif
  if (n == 4) return ValuesOfN<V, 4>(run, queries);
  if (n == 3) return ValuesOfN<V, 3>(run, queries);
  if (n == 2) return ValuesOfN<V, 2>(run, queries);
  return ValuesOfN<V, 1>(run, queries);
}
// The tokens of `mask`, bit 0 for the run's first. Integers have weight 0 where it is cleared.
template <class V>
void ValuesOf(uint32_t n, const ValueRun& run, uint64_t mask, AttentionQuery* const* queries) {
  if constexpr (requires { V::kGroups; }) {
    AllValuesOf<V>(n, run, queries);
  } else {
    for (uint32_t from = 0; from < run.tokens; ++from) {
      if ((mask >> from & 1) == 0) continue;
      const uint64_t skipped = ~(mask >> from);  // the next bit set: where this stretch ends
      const auto stretch = static_cast<uint32_t>(skipped == 0 ? 64 : __builtin_ctzll(skipped));
      const uint32_t count = Least(run.tokens - from, stretch);
      AllValuesOf<V>(n,
                     {run.numbers + size_t{from} * run.stride * V::kBytes, run.stride,
                      run.value_stride, run.first + from, count, run.ahead},
                     queries);
      from += count;
    }
  }
}

void StoredScores(KvFormat format, uint32_t n, const KeyRun* runs, uint32_t count, uint32_t dims) {
  switch (format) {
    case KvFormat::kF32:
      return ScoresOf<StoredF32, false>(n, runs, count, dims);
    case KvFormat::kF16:
      return ScoresOf<StoredF16, false>(n, runs, count, dims);
    case KvFormat::kBf16:
      return ScoresOf<StoredBf16, false>(n, runs, count, dims);
    case KvFormat::kFp8E4m3:
      return ScoresOf<StoredE4m3, false>(n, runs, count, dims);
    case KvFormat::kFp8E5m2:
      return ScoresOf<StoredE5m2, false>(n, runs, count, dims);
    case KvFormat::kInt8:
      return ScoresOf<KeyInt8, false>(n, runs, count, dims);
    case KvFormat::kInt4:
      return ScoresOf<KeyInt4, false>(n, runs, count, dims);
    case KvFormat::kNf4:
      return ScoresOf<KeyNf4, false>(n, runs, count, dims);
  }
}

void StoredValues(KvFormat format, uint32_t n, const ValueRun& run, uint64_t mask,
                  AttentionQuery* const* queries) {
  switch (format) {
    case KvFormat::kF32:
      return ValuesOf<StoredF32>(n, run, mask, queries);
    case KvFormat::kF16:
      return ValuesOf<StoredF16>(n, run, mask, queries);
    case KvFormat::kBf16:
      return ValuesOf<StoredBf16>(n, run, mask, queries);
    case KvFormat::kFp8E4m3:
      return ValuesOf<StoredE4m3>(n, run, mask, queries);
    case KvFormat::kFp8E5m2:
      return ValuesOf<StoredE5m2>(n, run, mask, queries);
    case KvFormat::kInt8:
      return ValuesOf<ValueInt8>(n, run, mask, queries);
    case KvFormat::kInt4:
      return ValuesOf<ValueInt4>(n, run, mask, queries);
    case KvFormat::kNf4:
      return ValuesOf<ValueNf4>(n, run, mask, queries);
  }
}

KV_INLINE int32_t BiasOf(KvFormat format) { return format == KvFormat::kInt4 ? kInt4Bias : 0; }

// The queries of one row and kv head from query head `g` of its group on: their number, at most
// kBatch.
uint32_t Batch(const Call& call, uint32_t row, uint32_t kv, uint32_t g, AttentionQuery** out) {
  const uint32_t n = Least(kBatch, call.a.group - g);
  for (uint32_t i = 0; i < n; ++i) out[i] = call.query(row, kv * call.a.group + g + i);
  return n;
}

// Where the numbers lie that are kPrefetchBytes of work ahead. Units of work of a tile, in order: K
// of each run and kv head, then V.
class Prefetch {
 public:
  Prefetch(const Call& call, const Tile& tile, const Tile& next)
      : call_(call),
        tile_(tile),
        next_(next),
        kv_heads_(call.a.kv_head_end - call.a.kv_head_begin) {}

  // From unit (run, kv) of K or V, which lies at `numbers`; 0 behind the end. Asks for its scales.
  KV_INLINE ptrdiff_t Ahead(const std::byte* numbers, bool values, uint32_t run,
                            uint32_t kv) const {
    const uint32_t units = 2 * tile_.runs * kv_heads_;
    const auto bytes =
        static_cast<uint32_t>(values ? call_.a.kv->v.run_bytes : call_.a.kv->k.run_bytes);
    uint32_t unit = (values ? units / 2 : 0) + run * kv_heads_ + kv + kPrefetchBytes / bytes;
    const Tile& tile = unit < units ? tile_ : next_;
    if (unit >= units) unit -= units;
    const uint32_t half = tile.runs * kv_heads_;
    if (unit >= 2 * half) return 0;
    values = unit >= half;
    if (values) unit -= half;
    run = unit / kv_heads_, kv = call_.a.kv_head_begin + unit % kv_heads_;
    if (values ? call_.v_scaled : call_.k_scaled) {
      __builtin_prefetch((values ? tile.v_scale[run] : tile.k_scale[run]) + kv * call_.scale_head);
    }
    const std::byte* at =
        values ? tile.v[run] + kv * call_.v_head : tile.k[run] + kv * call_.k_head;
    return static_cast<ptrdiff_t>(reinterpret_cast<uintptr_t>(at) -
                                  reinterpret_cast<uintptr_t>(numbers));
  }

 private:
  const Call& call_;
  const Tile& tile_;
  const Tile& next_;
  uint32_t kv_heads_;
};

// One tile for few rows: all kv heads, in address order.
void FewRowsTile(const Call& call, const Tile& tile, const Tile& next) {
  const Args& a = call.a;
  const PagedKv& kv = *a.kv;
  const Prefetch prefetch(call, tile, next);
  const uint32_t kv_heads = a.kv_head_end - a.kv_head_begin;
  const uint32_t key_dims = KeyDims(kv.k.format, kv.head_dim);
  const uint32_t stride = ValueStride(kv.v.format, kv.head_dim);
  constexpr uint32_t kHeadsAtOnce = 4;
  for (uint32_t j = 0; j < tile.runs; ++j) {
    for (uint32_t first = 0; first < kv_heads; first += kHeadsAtOnce) {
      const uint32_t count = Least(kHeadsAtOnce, kv_heads - first);
      ptrdiff_t ahead[kHeadsAtOnce];
      for (uint32_t i = 0; i < count; ++i) {
        const std::byte* numbers = tile.k[j] + (a.kv_head_begin + first + i) * call.k_head;
        ahead[i] = prefetch.Ahead(numbers, false, j, first + i);
      }
      for (uint32_t row = 0; row < a.rows; ++row) {
        if (call.Seen(row, tile.token) <= j * kRunTokens) continue;
        for (uint32_t g = 0; g < a.group; g += kBatch) {
          AttentionQuery* queries[kHeadsAtOnce][kBatch];
          KeyRun runs[kHeadsAtOnce];
          uint32_t n = 0;
          for (uint32_t i = 0; i < count; ++i) {
            n = Batch(call, row, first + i, g, queries[i]);
            const uint32_t head = a.kv_head_begin + first + i;
            runs[i] = {tile.k[j] + head * call.k_head,
                       call.k_scaled ? tile.k_scale[j] + head * call.scale_head : nullptr,
                       queries[i], j * kRunTokens, ahead[i]};
          }
          StoredScores(kv.k.format, n, runs, count, key_dims);
        }
      }
    }
  }
  for (uint32_t row = 0; row < a.rows; ++row) {
    const uint32_t n = call.Seen(row, tile.token);
    if (n == 0) continue;
    for (uint32_t head = 0; head < call.heads; ++head) {
      const uint32_t kv_head = a.kv_head_begin + head / a.group;
      Weigh(call, *call.query(row, head), n, call.Mask(kv_head, tile.token, n), tile.v_scale,
            kv_head * call.scale_head);
    }
  }
  for (uint32_t j = 0; j < tile.runs; ++j) {
    for (uint32_t head = 0; head < kv_heads; ++head) {
      const std::byte* numbers = tile.v[j] + (a.kv_head_begin + head) * call.v_head;
      const ptrdiff_t ahead = prefetch.Ahead(numbers, true, j, head);
      for (uint32_t row = 0; row < a.rows; ++row) {
        const uint32_t seen = call.Seen(row, tile.token);
        if (seen <= j * kRunTokens) continue;
        const uint32_t kv_head = a.kv_head_begin + head;
        const uint64_t mask = call.Mask(kv_head, tile.token, seen) >> (j * kRunTokens);
        const ValueRun run{numbers,
                           stride,
                           call.value_stride,
                           j * kRunTokens,
                           Least(kRunTokens, seen - j * kRunTokens),
                           ahead};
        for (uint32_t g = 0; g < a.group; g += kBatch) {
          AttentionQuery* queries[kBatch];
          const uint32_t n = Batch(call, row, head, g, queries);
          StoredValues(kv.v.format, n, run, mask, queries);
        }
      }
    }
  }
  if (!call.v_integers) return;
  for (uint32_t row = 0; row < a.rows; ++row) {
    if (call.Seen(row, tile.token) == 0) continue;
    for (uint32_t head = 0; head < call.heads; ++head) {
      Fold(call, *call.query(row, head), BiasOf(kv.v.format));
    }
  }
}

// Numbers of a run of K or V as f32, or pairs of int16, in the same order.
template <class Stored>
void WidenFloats(const std::byte* from, uint32_t count, float* to) {
  for (uint32_t i = 0; i < count; i += 16) Store(to + i, Stored::At(from + i * Stored::kBytes));
}
void WidenStored(KvFormat format, const std::byte* from, uint32_t count, float* to) {
  switch (format) {
    case KvFormat::kF32:
      return WidenFloats<StoredF32>(from, count, to);
    case KvFormat::kF16:
      return WidenFloats<StoredF16>(from, count, to);
    case KvFormat::kBf16:
      return WidenFloats<StoredBf16>(from, count, to);
    case KvFormat::kFp8E4m3:
      return WidenFloats<StoredE4m3>(from, count, to);
    default:
      return WidenFloats<StoredE5m2>(from, count, to);
  }
}
// `steps` steps of kPairs or kGroups P16 each.
template <class Stored, int kEach>
void WidenPairs(const std::byte* from, uint32_t steps, std::byte* to) {
  for (uint32_t i = 0; i < steps; ++i) {
    P16 pairs[kEach];
    Stored::At(from + size_t{i} * Stored::kBytes, pairs);
    for (int p = 0; p < kEach; ++p) StorePairs(to + (size_t{i} * kEach + p) * 64, pairs[p]);
  }
}
void WidenKeyPairs(KvFormat format, const std::byte* from, uint32_t dims, std::byte* to) {
  if (format == KvFormat::kInt8) return WidenPairs<KeyInt8, 1>(from, dims / 2, to);
  if (format == KvFormat::kInt4) return WidenPairs<KeyInt4, 4>(from, dims / 8, to);
  return WidenPairs<KeyNf4, 4>(from, dims / 8, to);
}
void WidenValuePairs(KvFormat format, const std::byte* from, uint32_t stride, std::byte* to) {
  const uint32_t groups = stride / 16 * (kRunTokens / 2);
  if (format == KvFormat::kInt8) return WidenPairs<ValueInt8, 1>(from, groups, to);
  if (format == KvFormat::kInt4) return WidenPairs<ValueInt4, 2>(from, groups / 2, to);
  return WidenPairs<ValueNf4, 2>(from, groups / 2, to);
}

// Scores of the rows from `row` on against a widened tile of K of kv head `kv`.
void WideScores(const Call& call, const Tile& tile, uint32_t row, uint32_t kv) {
  const Args& a = call.a;
  const PagedKv& paged = *a.kv;
  const uint32_t dims = KeyDims(paged.k.format, paged.head_dim);
  auto* wide = reinterpret_cast<std::byte*>(a.scratch->key_tile);
  const size_t run_bytes = size_t{dims} * kRunTokens * (call.k_integers ? 2 : 4);
  KeyRun runs[kRuns];
  for (uint32_t j = 0; j < tile.runs; ++j) {
    const std::byte* from = tile.k[j] + kv * call.k_head;
    std::byte* to = wide + j * run_bytes;
    if (call.k_integers) {
      WidenKeyPairs(paged.k.format, from, dims, to);
    } else {
      WidenStored(paged.k.format, from, dims * kRunTokens, reinterpret_cast<float*>(to));
    }
    runs[j] = {to, call.k_scaled ? tile.k_scale[j] + kv * call.scale_head : nullptr, nullptr,
               j * kRunTokens};
  }
  const uint32_t count = a.rows * call.heads;
  for (uint32_t i = row * call.heads; i < count; i += kBatch) {
    const uint32_t n = Least(kBatch, count - i);
    AttentionQuery* queries[kBatch];
    for (uint32_t q = 0; q < n; ++q) queries[q] = a.scratch->queries + i + q;
    // The last of a batch sees most: runs that the first does not see cost little and do no harm.
    const uint32_t seen = call.Seen((i + n - 1) / call.heads, tile.token);
    const uint32_t needed = (seen + kRunTokens - 1) / kRunTokens;
    for (uint32_t j = 0; j < needed; ++j) runs[j].queries = queries;
    if (!call.k_integers) {
      ScoresOf<StoredF32, true>(n, runs, needed, dims);
    } else if (BiasOf(paged.k.format) == 0) {
      ScoresOf<Wide<0>, true>(n, runs, needed, dims);
    } else {
      ScoresOf<Wide<kInt4Bias>, true>(n, runs, needed, dims);
    }
  }
}

// Weights of the rows from `row` on times a tile of V of kv head `kv`, widened.
void WideValues(const Call& call, const Tile& tile, uint32_t row, uint32_t kv) {
  const Args& a = call.a;
  const PagedKv& paged = *a.kv;
  const uint32_t stride = ValueStride(paged.v.format, paged.head_dim);
  auto* wide = reinterpret_cast<std::byte*>(a.scratch->value_tile);
  for (uint32_t j = 0; j < tile.runs; ++j) {
    const std::byte* from = tile.v[j] + kv * call.v_head;
    std::byte* to = wide + size_t{j} * stride * kRunTokens * (call.v_integers ? 2 : 4);
    if (call.v_integers) {
      WidenValuePairs(paged.v.format, from, stride, to);
    } else {
      WidenStored(paged.v.format, from, stride * kRunTokens, reinterpret_cast<float*>(to));
    }
  }
  const uint32_t count = a.rows * call.heads;
  for (uint32_t i = row * call.heads; i < count;) {
    const uint32_t seen = call.Seen(i / call.heads, tile.token);
    AttentionQuery* queries[kBatch];
    uint32_t n = 0;  // queries that see the same tokens
    while (n < kBatch && i + n < count && call.Seen((i + n) / call.heads, tile.token) == seen) {
      queries[n] = a.scratch->queries + i + n;
      ++n;
    }
    const ValueRun run{wide, stride, call.value_stride, 0, seen};
    const uint64_t mask = call.Mask(kv, tile.token, seen);
    if (call.v_integers) {
      ValuesOf<Wide<0>>(n, run, mask, queries);
      for (uint32_t q = 0; q < n; ++q) Fold(call, *queries[q], BiasOf(paged.v.format));
    } else {
      ValuesOf<StoredF32>(n, run, mask, queries);
    }
    i += n;
  }
}

uint32_t FirstRowThatSees(const Call& call, uint32_t token) {
  uint32_t row = 0;
  while (call.Seen(row, token) == 0) ++row;
  return row;
}

// One tile for many rows: of the one kv head at hand.
void ManyRowsTile(const Call& call, const Tile& tile) {
  const Args& a = call.a;
  const uint32_t row = FirstRowThatSees(call, tile.token);
  WideScores(call, tile, row, a.kv_head_begin);
  for (uint32_t r = row; r < a.rows; ++r) {
    const uint32_t n = call.Seen(r, tile.token);
    const uint64_t mask = call.Mask(a.kv_head_begin, tile.token, n);
    for (uint32_t head = 0; head < call.heads; ++head) {
      Weigh(call, *call.query(r, head), n, mask, tile.v_scale, a.kv_head_begin * call.scale_head);
    }
  }
  WideValues(call, tile, row, a.kv_head_begin);
}

}  // namespace
}  // namespace kvasir::KVASIR_TARGET_NS
