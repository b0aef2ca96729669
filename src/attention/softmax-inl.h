// Turns a tile's scores into weights relative to the span's maximum, and sums them.
#pragma once

#include "attention/numbers-inl.h"
#include "simd/tanh16-inl.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

constexpr int kBatch = 4;  // queries in flight
// Returns how many runs of K, or groups of 16 dims of V, are processed with n queries.
#if KVASIR_TARGET_ID == 2
constexpr int AtOnce(int) { return 4; }
#elif KVASIR_TARGET_ID == 1
constexpr int AtOnce(int n) { return n == 1 ? 4 : n == 2 ? 2 : 1; }
#else
constexpr int AtOnce(int) { return 1; }
#endif
constexpr uint32_t kRuns = kAttentionTile / kRunTokens;
constexpr uint32_t kPrefetchBytes = 6 << 10;  // distance from the current numbers
constexpr float kTiny = 0x1p-100f;            // below it a maximum counts as 0
const float kMinusInfinity = -__builtin_inff();

using Args = AttentionKernels::Args;

KV_INLINE uint32_t Least(uint32_t a, uint32_t b) { return a < b ? a : b; }

// A tile of 64 tokens: places of K and V of its runs, for kv head 0.
struct Tile {
  uint32_t token;  // its first
  uint32_t runs;   // with tokens that a row sees; 0: no tile
  const std::byte* k[kRuns];
  const std::byte* v[kRuns];
  const uint16_t* k_scale[kRuns];
  const uint16_t* v_scale[kRuns];
};

// Data for all functions of one call.
struct Call {
  const Args& a;
  uint32_t head_offset;   // of the first head at hand, in partials
  uint32_t heads;         // query heads at hand
  uint32_t value_stride;  // of acc
  size_t k_head, v_head;  // bytes between kv heads
  size_t scale_head;      // scales between kv heads
  bool k_scaled, v_scaled, k_integers, v_integers;

  Call(const Args& args, uint32_t head_offset)
      : a(args),
        head_offset(head_offset),
        heads((args.kv_head_end - args.kv_head_begin) * args.group),
        value_stride((args.kv->head_dim + 15) / 16 * 16),
        k_head(args.kv->block_tokens / kRunTokens * args.kv->k.run_bytes),
        v_head(args.kv->block_tokens / kRunTokens * args.kv->v.run_bytes),
        scale_head(args.kv->block_tokens),
        k_scaled(TraitsOf(args.kv->k.format).scaled),
        v_scaled(TraitsOf(args.kv->v.format).scaled),
        k_integers(TraitsOf(args.kv->k.format).math == KvMath::kIntegers),
        v_integers(TraitsOf(args.kv->v.format).math == KvMath::kIntegers) {}

  AttentionQuery* query(uint32_t row, uint32_t head) const {
    return a.scratch->queries + size_t{row} * heads + head;
  }
  // Counts the tokens of the tile from `token` that are not beyond a row's limit: 0 to 64.
  uint32_t Seen(uint32_t row, uint32_t token) const {
    return a.limit[row] <= token ? 0 : Least(kAttentionTile, a.limit[row] - token);
  }
  // Returns the tokens among the first n that a row's queries of a kv head see.
  uint64_t Mask(uint32_t row, uint32_t kv_head, uint32_t token, uint32_t n) const {
    const uint64_t mask = a.mask.Tile(kv_head, token) & (~uint64_t{0} >> (kAttentionTile - n));
    if (a.begin == nullptr || a.begin[row] <= token) return mask;
    const uint32_t before = a.begin[row] - token;
    return before >= kAttentionTile ? 0 : mask & ~uint64_t{0} << before;
  }
  // Returns the first tile from `token` on with a token that a row sees, by `begin`.
  uint32_t FirstTile(uint32_t token) const {
    if (a.begin == nullptr) return token;
    uint32_t least = a.begin[0];
    for (uint32_t row = 1; row < a.rows; ++row) least = Least(least, a.begin[row]);
    least = least / kAttentionTile * kAttentionTile;
    return least > token ? least : token;
  }
};

Tile Locate(const Call& call, uint32_t token, uint32_t seen) {
  const PagedKv& kv = *call.a.kv;
  const uint32_t runs = kv.block_tokens / kRunTokens;
  Tile tile{};
  tile.token = token;
  tile.runs = (seen + kRunTokens - 1) / kRunTokens;
  for (uint32_t j = 0; j < tile.runs; ++j) {
    const uint32_t run = token / kRunTokens + j, in = run % runs;
    const std::byte* base = kv.blocks[run / runs];
    tile.k[j] = base + kv.k.offset + in * kv.k.run_bytes;
    tile.v[j] = base + kv.v.offset + in * kv.v.run_bytes;
    tile.k_scale[j] = reinterpret_cast<const uint16_t*>(base + kv.k.scale_offset) + in * kRunTokens;
    tile.v_scale[j] = reinterpret_cast<const uint16_t*>(base + kv.v.scale_offset) + in * kRunTokens;
  }
  return tile;
}

// Writes x / scale rounded to int16: n numbers and zeros up to a multiple of 16, scale = amax /
// 32767. Returns the scale: 0, with zeros, for amax < 2^-100; NaN where an x is. sum: of all,
// exact.
float RoundToInt16(const float* x, uint32_t n, int16_t* out, int32_t* sum) {
  V16 top = Zero();
  for (uint32_t i = 0; i < n; i += 16) top = MaxMagnitude(top, LoadFirst(n - i, x + i));
  const float amax = MagnitudeLane(top);
  const bool tiny = amax < kTiny;
  const V16 inverse = Set(tiny ? 0.0f : 32767.0f / amax);
  V16 total = Zero();  // floats hold it exactly: at most 512 * 32767 < 2^24
  for (uint32_t i = 0; i < n; i += 16) {
    const V16 y = Mul(LoadFirst(n - i, x + i), inverse);
    // Max comes first, because it turns a NaN into a number.
    const V16 rounded = RoundEven(Min(Max(y, Set(-32767.0f)), Set(32767.0f)));
    total = Add(total, rounded);
    StoreInt16(out + i, rounded);
  }
  *sum = static_cast<int32_t>(SumTree(total));
  return tiny ? 0.0f : amax / 32767.0f;
}

// Caps the first n scores of a tile: cap * tanh(score). One that is not finite becomes NaN, not the
// cap.
void CapScores(AttentionQuery& query, uint32_t n, float cap) {
  for (uint32_t j = 0; j < n; j += 16) {
    const V16 s = Load(query.score + j);
    Store(query.score + j, Add(Mul(Set(cap), Tanh(s)), Sub(s, s)));
  }
}

// Turns the scores of a tile's first n tokens, those of `mask`, into weights relative to the span's
// maximum, which may grow; then multiplies them by V's scales. v_scale: of the head, per run.
KV_INLINE void Weigh(const Call& call, AttentionQuery& query, uint32_t n, uint64_t mask,
                     const uint16_t* const* v_scale, size_t scale_at) {
  float* score = query.score;
  const auto lanes_of = [mask](uint32_t j) { return static_cast<uint32_t>(mask >> j & 0xffff); };
  V16 top = Set(kMinusInfinity);
  for (uint32_t j = 0; j < n; j += 16) {
    top = Max(SelectLanes(lanes_of(j), Load(score + j), Set(kMinusInfinity)), top);
  }
  const float tile_max = MaxLane(top);
  if (tile_max > query.m) {
    if (query.m > kMinusInfinity) {
      const V16 shrink = ExpNonPositive(Sub(Set(query.m), Set(tile_max)));
      Store(query.lanes, Mul(Load(query.lanes), shrink));
      for (uint32_t i = 0; i < call.value_stride; i += 16) {
        Store(query.acc + i, Mul(Load(query.acc + i), shrink));
      }
    }
    query.m = tile_max;
  }
  const V16 m = Set(query.m);
  V16 lanes = Load(query.lanes);
  for (uint32_t j = 0; j < n; j += 16) {
    const V16 s = Load(score + j);
    // Adds s - s, which is 0, or NaN when the score overflowed: Exp and Max would turn that into a
    // number.
    V16 weight = SelectLanes(lanes_of(j), Add(ExpNonPositive(Sub(s, m)), Sub(s, s)), Zero());
    lanes = Add(lanes, weight);
    if (call.v_scaled) {
      const V16 scale = LoadBf16(v_scale[j / 16] + scale_at);
      weight = SelectLanes(lanes_of(j), Mul(weight, scale), Zero());
    }
    Store(score + j, weight);
  }
  Store(query.lanes, lanes);
  if (!call.v_integers) return;
  query.weight_scale = RoundToInt16(score, (n + 15) / 16 * 16, query.weight, &query.weight_sum);
}

// acc += sum * weight_scale: the tile's integer sums, of codes that are `bias` above their numbers.
KV_INLINE void Fold(const Call& call, AttentionQuery& query, int32_t bias) {
  const V16 scale = Set(query.weight_scale);
  for (uint32_t i = 0; i < call.value_stride; i += 16) {
    const I16 sum = SubI(LoadI(query.sum + i), bias * query.weight_sum);
    Store(query.acc + i, Fma(ToFloat(sum), scale, Load(query.acc + i)));
  }
}

}  // namespace
}  // namespace kvasir::KVASIR_TARGET_NS
