// One tile of 64 tokens for all rows of a call.
//
// There are two orders of work with the same bits. Few rows (decode) go through all kv heads of a
// tile and read the stored numbers directly, with prefetch. Many rows (prefill, a shared prefix)
// take one kv head at a time, whose tile is widened once for all of them.
#pragma once

#include "attention/softmax-inl.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

template <class K, int kN, int kRunsAtOnce, bool kAsk>
KV_INLINE void Scores(AttentionQuery* const* queries, const KeyRun* runs, uint32_t key_dims) {
  if constexpr (requires { K::kPairs; }) {
    IntegerScores<K, kN, kRunsAtOnce, kAsk>(queries, runs, key_dims);
  } else {
    FloatScores<K, kN, kRunsAtOnce, kAsk>(queries, runs, key_dims);
  }
}

template <class K, int kN, bool kAsk>
void AllRuns(AttentionQuery* const* queries, const KeyRun* runs, uint32_t count,
             uint32_t key_dims) {
  uint32_t i = 0;
  for (; i + AtOnce(kN) <= count; i += AtOnce(kN)) {
    Scores<K, kN, AtOnce(kN), kAsk>(queries, runs + i, key_dims);
  }
  for (; i < count; ++i) Scores<K, kN, 1, kAsk>(queries, runs + i, key_dims);
}
template <class K, bool kAsk>
void ScoresOf(uint32_t n, AttentionQuery* const* queries, const KeyRun* runs, uint32_t count,
              uint32_t key_dims) {
  if (n == 4) return AllRuns<K, 4, kAsk>(queries, runs, count, key_dims);
  if (n == 3) return AllRuns<K, 3, kAsk>(queries, runs, count, key_dims);
  if (n == 2) return AllRuns<K, 2, kAsk>(queries, runs, count, key_dims);
  return AllRuns<K, 1, kAsk>(queries, runs, count, key_dims);
}

// V of a tile of one kv head: its runs, in order.
struct ValueTile {
  const ValueRun* runs;
  uint32_t count;
  uint32_t stride;        // numbers from token to token
  uint32_t value_stride;  // dims of acc
};

template <class V, int kN>
void ValuesOfN(const ValueTile& v, AttentionQuery* const* queries) {
  uint32_t dim = 0;
  if constexpr (requires { V::kGroups; }) {
    constexpr int kSteps = AtOnce(kN) / V::kGroups > 0 ? AtOnce(kN) / V::kGroups : 1;
    constexpr uint32_t kAtOnce = kSteps * V::kGroups * 16;
    for (; dim + kAtOnce <= v.value_stride; dim += kAtOnce) {
      IntegerValues<V, kN, kSteps>(queries, v.runs, v.count, v.stride, dim);
    }
    for (; dim < v.value_stride; dim += V::kGroups * 16) {
      IntegerValues<V, kN, 1>(queries, v.runs, v.count, v.stride, dim);
    }
  } else {
    constexpr int kAtOnce = AtOnce(kN);
    for (; dim + kAtOnce * 16 <= v.value_stride; dim += kAtOnce * 16) {
      FloatValues<V, kN, kAtOnce>(queries, v.runs, v.count, v.stride, dim);
    }
    for (; dim < v.value_stride; dim += 16) {
      FloatValues<V, kN, 1>(queries, v.runs, v.count, v.stride, dim);
    }
  }
}
template <class V>
void AllValuesOf(uint32_t n, const ValueTile& v, AttentionQuery* const* queries) {
#if KVASIR_TARGET_ID == 1
  if constexpr (requires { V::kGroups; }) {
    if (V::kGroups == 2 && n > 2) {  // registers: four queries times two groups are too many
      ValuesOfN<V, 2>(v, queries);
      return AllValuesOf<V>(n - 2, v, queries + 2);
    }
  }
#endif
  if (n == 4) return ValuesOfN<V, 4>(v, queries);
  if (n == 3) return ValuesOfN<V, 3>(v, queries);
  if (n == 2) return ValuesOfN<V, 2>(v, queries);
  return ValuesOfN<V, 1>(v, queries);
}
// Adds the tokens of `mask`, bit i for place i. Integers have weight 0 where it is cleared.
template <class V>
void ValuesOf(uint32_t n, const ValueTile& v, uint64_t mask, AttentionQuery* const* queries) {
  if constexpr (requires { V::kGroups; }) {
    AllValuesOf<V>(n, v, queries);
  } else {
    const ValueRun& last = v.runs[v.count - 1];
    const uint64_t all = ~uint64_t{0} >> (kAttentionTile - last.first - last.tokens);
    if ((mask & all) == all) return AllValuesOf<V>(n, v, queries);
    ValueRun stretches[kAttentionTile / 2];  // of the runs, where the mask is set throughout
    uint32_t count = 0;
    for (uint32_t j = 0; j < v.count; ++j) {
      const ValueRun& run = v.runs[j];
      const uint64_t seen = mask >> run.first;
      for (uint32_t from = 0; from < run.tokens; ++from) {
        if ((seen >> from & 1) == 0) continue;
        const uint64_t skipped = ~(seen >> from);  // the next bit set: where this stretch ends
        const auto stretch = static_cast<uint32_t>(skipped == 0 ? 64 : __builtin_ctzll(skipped));
        const uint32_t tokens = Least(run.tokens - from, stretch);
        stretches[count++] = {run.numbers + size_t{from} * v.stride * V::kBytes, run.first + from,
                              tokens, run.ahead};
        from += tokens;
      }
    }
    AllValuesOf<V>(n, {stretches, count, v.stride, v.value_stride}, queries);
  }
}

void StoredScores(KvFormat format, uint32_t n, AttentionQuery* const* queries, const KeyRun* runs,
                  uint32_t count, uint32_t dims) {
  switch (format) {
    case KvFormat::kF32:
      return ScoresOf<StoredF32, true>(n, queries, runs, count, dims);
    case KvFormat::kF16:
      return ScoresOf<StoredF16, true>(n, queries, runs, count, dims);
    case KvFormat::kBf16:
      return ScoresOf<StoredBf16, true>(n, queries, runs, count, dims);
    case KvFormat::kFp8E4m3:
      return ScoresOf<StoredE4m3, true>(n, queries, runs, count, dims);
    case KvFormat::kFp8E5m2:
      return ScoresOf<StoredE5m2, true>(n, queries, runs, count, dims);
    case KvFormat::kInt8:
      return ScoresOf<KeyInt8, true>(n, queries, runs, count, dims);
    case KvFormat::kInt4:
      return ScoresOf<KeyInt4, true>(n, queries, runs, count, dims);
    case KvFormat::kNf4:
      return ScoresOf<KeyNf4, true>(n, queries, runs, count, dims);
  }
}

void StoredValues(KvFormat format, uint32_t n, const ValueTile& v, uint64_t mask,
                  AttentionQuery* const* queries) {
  switch (format) {
    case KvFormat::kF32:
      return ValuesOf<StoredF32>(n, v, mask, queries);
    case KvFormat::kF16:
      return ValuesOf<StoredF16>(n, v, mask, queries);
    case KvFormat::kBf16:
      return ValuesOf<StoredBf16>(n, v, mask, queries);
    case KvFormat::kFp8E4m3:
      return ValuesOf<StoredE4m3>(n, v, mask, queries);
    case KvFormat::kFp8E5m2:
      return ValuesOf<StoredE5m2>(n, v, mask, queries);
    case KvFormat::kInt8:
      return ValuesOf<ValueInt8>(n, v, mask, queries);
    case KvFormat::kInt4:
      return ValuesOf<ValueInt4>(n, v, mask, queries);
    case KvFormat::kNf4:
      return ValuesOf<ValueNf4>(n, v, mask, queries);
  }
}

KV_INLINE int32_t BiasOf(KvFormat format) { return format == KvFormat::kInt4 ? kInt4Bias : 0; }

// Returns the queries of one row and kv head from query head `g` of its group on: their number, at
// most kBatch.
uint32_t Batch(const Call& call, uint32_t row, uint32_t kv, uint32_t g, AttentionQuery** out) {
  const uint32_t n = Least(kBatch, call.a.group - g);
  for (uint32_t i = 0; i < n; ++i) out[i] = call.query(row, kv * call.a.group + g + i);
  return n;
}

// Goes through the units of work of a tile (for each kv head K of its runs, then V) and of the next
// tile, about kPrefetchBytes ahead of the work.
class Prefetch {
 public:
  Prefetch(const Call& call, const Tile& tile, const Tile& next)
      : call_(call), tile_(&tile), next_(&next) {
    const PagedKv& kv = *call.a.kv;
    const size_t units = 2 * kPrefetchBytes / (kv.k.run_bytes + kv.v.run_bytes) + 1;
    const uint32_t of_head = 2 * tile.runs;
    // K and V of different sizes: from K to K.
    const bool same = kv.k.run_bytes == kv.v.run_bytes;
    size_t left = same ? units : (units + of_head - 1) / of_head * of_head;
    for (; left > 0; --left) Step();
  }

  // Returns, called once per unit, the distance from `numbers` to the numbers to prefetch, 0 at the
  // end. Prefetches their scales.
  KV_INLINE ptrdiff_t Ahead(const std::byte* numbers) {
    if (tile_ == nullptr) return 0;
    const uint32_t kv_head = call_.a.kv_head_begin + head_;
    if (values_ ? call_.v_scaled : call_.k_scaled) {
      __builtin_prefetch((values_ ? tile_->v_scale[run_] : tile_->k_scale[run_]) +
                         kv_head * call_.scale_head);
    }
    const std::byte* at =
        values_ ? tile_->v[run_] + kv_head * call_.v_head : tile_->k[run_] + kv_head * call_.k_head;
    Step();
    return static_cast<ptrdiff_t>(reinterpret_cast<uintptr_t>(at) -
                                  reinterpret_cast<uintptr_t>(numbers));
  }

 private:
  KV_INLINE void Step() {
    if (tile_ == nullptr || ++run_ < tile_->runs) return;
    run_ = 0;
    values_ = !values_;
    if (values_ || ++head_ < call_.a.kv_head_end - call_.a.kv_head_begin) return;
    head_ = 0;
    tile_ = next_ != nullptr && next_->runs > 0 ? next_ : nullptr;
    next_ = nullptr;
  }

  const Call& call_;
  const Tile* tile_;  // the position of the prefetch: tile,
  const Tile* next_;
  bool values_ = false;  // V, not K
  uint32_t head_ = 0, run_ = 0;
};

// Attends one tile for few rows, kv head by kv head.
template <bool kCapped>
void FewRowsTile(const Call& call, const Tile& tile, const Tile& next) {
  const Args& a = call.a;
  const PagedKv& kv = *a.kv;
  Prefetch prefetch(call, tile, next);
  const uint32_t key_dims = KeyDims(kv.k.format, kv.head_dim);
  const uint32_t stride = ValueStride(kv.v.format, kv.head_dim);
  for (uint32_t kv_head = a.kv_head_begin; kv_head < a.kv_head_end; ++kv_head) {
    KeyRun keys[kRuns];
    for (uint32_t j = 0; j < tile.runs; ++j) {
      const std::byte* numbers = tile.k[j] + kv_head * call.k_head;
      keys[j] = {numbers, call.k_scaled ? tile.k_scale[j] + kv_head * call.scale_head : nullptr,
                 j * kRunTokens, prefetch.Ahead(numbers)};
    }
    ValueRun values[kRuns];
    for (uint32_t j = 0; j < tile.runs; ++j) {
      const std::byte* numbers = tile.v[j] + kv_head * call.v_head;
      values[j] = {numbers, j * kRunTokens, kRunTokens, prefetch.Ahead(numbers)};
    }
    for (uint32_t row = 0; row < a.rows; ++row) {
      const uint32_t seen = call.Seen(row, tile.token);
      if (seen == 0) continue;
      const uint32_t count = (seen + kRunTokens - 1) / kRunTokens;
      values[count - 1].tokens = seen - (count - 1) * kRunTokens;
      const uint64_t mask = call.Mask(row, kv_head, tile.token, seen);
      if (mask == 0) continue;
      for (uint32_t g = 0; g < a.group; g += kBatch) {
        AttentionQuery* queries[kBatch];
        const uint32_t n = Batch(call, row, kv_head - a.kv_head_begin, g, queries);
        StoredScores(kv.k.format, n, queries, keys, count, key_dims);
        for (uint32_t i = 0; i < n; ++i) {
          if constexpr (kCapped) CapScores(*queries[i], seen, a.softcap);
          Weigh(call, *queries[i], seen, mask, tile.v_scale, kv_head * call.scale_head);
        }
        StoredValues(kv.v.format, n, {values, count, stride, call.value_stride}, mask, queries);
        if (!call.v_integers) continue;
        for (uint32_t i = 0; i < n; ++i) Fold(call, *queries[i], BiasOf(kv.v.format));
      }
      values[count - 1].tokens = kRunTokens;
    }
  }
}

// Writes the numbers of a run of K or V as f32, or pairs of int16, in the same order.
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

// Computes the scores of the rows from `row` on against a widened tile of K of kv head `kv`.
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
    runs[j] = {to, call.k_scaled ? tile.k_scale[j] + kv * call.scale_head : nullptr, j * kRunTokens,
               0};
  }
  const uint32_t count = a.rows * call.heads;
  for (uint32_t i = row * call.heads; i < count; i += kBatch) {
    const uint32_t n = Least(kBatch, count - i);
    AttentionQuery* queries[kBatch];
    for (uint32_t q = 0; q < n; ++q) queries[q] = a.scratch->queries + i + q;
    // Uses the limit of the last query of a batch, which sees most. Runs that the first does not
    // see cost little and are masked later.
    const uint32_t seen = call.Seen((i + n - 1) / call.heads, tile.token);
    const uint32_t needed = (seen + kRunTokens - 1) / kRunTokens;
    if (!call.k_integers) {
      ScoresOf<StoredF32, false>(n, queries, runs, needed, dims);
    } else if (BiasOf(paged.k.format) == 0) {
      ScoresOf<Wide<0>, false>(n, queries, runs, needed, dims);
    } else {
      ScoresOf<Wide<kInt4Bias>, false>(n, queries, runs, needed, dims);
    }
  }
}

// Multiplies the weights of the rows from `row` on with a tile of V of kv head `kv`, widened.
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
  const auto mask_of = [&](uint32_t query) {
    const uint32_t r = query / call.heads;
    return call.Mask(r, kv, tile.token, call.Seen(r, tile.token));
  };
  for (uint32_t i = row * call.heads; i < count;) {
    const uint32_t seen = call.Seen(i / call.heads, tile.token);
    const uint64_t mask = mask_of(i);
    AttentionQuery* queries[kBatch];
    uint32_t n = 0;  // queries that see the same tokens
    while (n < kBatch && i + n < count && call.Seen((i + n) / call.heads, tile.token) == seen &&
           mask_of(i + n) == mask) {
      queries[n] = a.scratch->queries + i + n;
      ++n;
    }
    const ValueRun run{wide, 0, seen, 0};
    const ValueTile values{&run, 1, stride, call.value_stride};
    if (mask == 0) {
      // Adds nothing, not even a zero, which would turn -0 into +0.
    } else if (call.v_integers) {
      ValuesOf<Wide<0>>(n, values, mask, queries);
      for (uint32_t q = 0; q < n; ++q) Fold(call, *queries[q], BiasOf(paged.v.format));
    } else {
      ValuesOf<StoredF32>(n, values, mask, queries);
    }
    i += n;
  }
}

uint32_t FirstRowThatSees(const Call& call, uint32_t token) {
  uint32_t row = 0;
  while (call.Seen(row, token) == 0) ++row;
  return row;
}

// Attends one tile for many rows and one kv head.
template <bool kCapped>
void ManyRowsTile(const Call& call, const Tile& tile) {
  const Args& a = call.a;
  const uint32_t row = FirstRowThatSees(call, tile.token);
  WideScores(call, tile, row, a.kv_head_begin);
  for (uint32_t r = row; r < a.rows; ++r) {
    const uint32_t n = call.Seen(r, tile.token);
    const uint64_t mask = call.Mask(r, a.kv_head_begin, tile.token, n);
    if (mask == 0) continue;
    for (uint32_t head = 0; head < call.heads; ++head) {
      if constexpr (kCapped) CapScores(*call.query(r, head), n, a.softcap);
      Weigh(call, *call.query(r, head), n, mask, tile.v_scale, a.kv_head_begin * call.scale_head);
    }
  }
  WideValues(call, tile, row, a.kv_head_begin);
}

}  // namespace
}  // namespace kvasir::KVASIR_TARGET_NS
