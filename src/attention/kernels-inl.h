// The lanes of attention/kernels.h, compiled once per target. Query x key has lanes = tokens (K
// lies transposed in runs of 16), weights x value has lanes = head dims; only the sum of a span's
// weights crosses lanes, through one tree. Tokens at or beyond a row's limit are skipped.
#pragma once

#include "attention/tile-inl.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

void Merge(float* a, const float* b, uint32_t head_dim) {
  const uint32_t value_stride = (head_dim + 15) / 16 * 16;
  float* a_m = a + value_stride;
  const float* b_m = b + value_stride;
  if (b_m[1] == 0.0f) return;  // b saw no token
  if (a_m[1] == 0.0f) {
    for (uint32_t i = 0; i < value_stride + 2; ++i) a[i] = b[i];
    return;
  }
  const float m = a_m[0] > b_m[0] ? a_m[0] : b_m[0];
  const V16 ea = ExpNonPositive(Sub(Set(a_m[0]), Set(m))),
            eb = ExpNonPositive(Sub(Set(b_m[0]), Set(m)));
  for (uint32_t i = 0; i < value_stride; i += 16) {
    Store(a + i, Fma(Load(b + i), eb, Mul(Load(a + i), ea)));
  }
  float l[16];
  Store(l, Fma(Set(b_m[1]), eb, Mul(Set(a_m[1]), ea)));
  a_m[0] = m;
  a_m[1] = l[0];
}

// Ends a span: merges the state of its queries into their partials.
void EndSpan(const Call& call, uint32_t span) {
  const Args& a = call.a;
  const uint32_t floats = PartialFloats(a.kv->head_dim);
  const size_t at = (span - a.span_begin) * a.span_stride;
  for (uint32_t row = 0; row < a.rows; ++row) {
    if (a.limit[row] <= span * kAttentionSpan) continue;
    for (uint32_t head = 0; head < call.heads; ++head) {
      AttentionQuery& query = *call.query(row, head);
      query.acc[call.value_stride] = query.m;
      query.acc[call.value_stride + 1] = SumTree(Load(query.lanes));
      Merge(a.partial[row] + at + size_t{call.head_offset + head} * floats, query.acc,
            a.kv->head_dim);
    }
  }
}

void BeginQueries(const Call& call) {
  const Args& a = call.a;
  const uint32_t head_dim = a.kv->head_dim;
  for (uint32_t row = 0; row < a.rows; ++row) {
    for (uint32_t head = 0; head < call.heads; ++head) {
      AttentionQuery& query = *call.query(row, head);
      query.q = a.q[row] + size_t{a.kv_head_begin * a.group + head} * head_dim;
      if (!call.k_integers) continue;
      query.q_scale = RoundToInt16(query.q, head_dim, query.q16, &query.q_sum);
    }
  }
}

void BeginSpan(const Call& call) {
  for (uint32_t i = 0; i < call.a.rows * call.heads; ++i) {
    AttentionQuery& query = call.a.scratch->queries[i];
    query.m = kMinusInfinity;
    Store(query.lanes, Zero());
    for (uint32_t j = 0; j < call.value_stride; j += 16) Store(query.acc + j, Zero());
  }
}

// Returns the tile from `token`, if any row sees it before `end`.
Tile TileAt(const Call& call, uint32_t token, uint32_t end) {
  const uint32_t seen = token < end ? call.Seen(call.a.rows - 1, token) : 0;
  return Locate(call, token, seen);
}

// Attends few rows, or one kv head, whose partials lie head_offset heads after the first. Models
// without a soft-cap run the instance that has none.
template <bool kCapped>
void AttendSpans(const Args& a, uint32_t head_offset) {
  const Call call(a, head_offset);
  const uint32_t end = a.span_end * kAttentionSpan;
  const bool few = a.rows <= kMaxTileRows;
  BeginQueries(call);
  const uint32_t first = call.FirstTile(a.span_begin * kAttentionSpan);
  Tile tile = TileAt(call, first, end);
  while (tile.runs > 0) {
    if (tile.token == first || tile.token % kAttentionSpan == 0) BeginSpan(call);
    const Tile next = TileAt(call, tile.token + kAttentionTile, end);
    if (few) {
      FewRowsTile<kCapped>(call, tile, next);
    } else {
      ManyRowsTile<kCapped>(call, tile);
    }
    if (next.runs == 0 || next.token % kAttentionSpan == 0) {
      EndSpan(call, tile.token / kAttentionSpan);
    }
    tile = next;
  }
}

Args OneHead(Args args, uint32_t kv) {
  args.kv_head_begin = kv;
  args.kv_head_end = kv + 1;
  return args;
}

template <bool kCapped>
void AttendRows(const Args& args) {
  if (args.rows <= kMaxTileRows) return AttendSpans<kCapped>(args, 0);
  for (uint32_t kv = args.kv_head_begin; kv < args.kv_head_end; ++kv) {
    AttendSpans<kCapped>(OneHead(args, kv), (kv - args.kv_head_begin) * args.group);
  }
}

void Attend(const Args& args) {
  if (args.softcap != 0) return AttendRows<true>(args);
  AttendRows<false>(args);
}

// Computes the scores of one kv head for a tile: few rows read K as it is stored.
void ScoresOfHead(const Call& call, const Tile& tile, uint32_t row) {
  const Args& a = call.a;
  if (a.rows > kMaxTileRows) return WideScores(call, tile, row, a.kv_head_begin);
  const PagedKv& kv = *a.kv;
  KeyRun keys[kRuns];
  for (uint32_t j = 0; j < tile.runs; ++j) {
    keys[j] = {tile.k[j] + a.kv_head_begin * call.k_head,
               call.k_scaled ? tile.k_scale[j] + a.kv_head_begin * call.scale_head : nullptr,
               j * kRunTokens, 0};
  }
  for (uint32_t r = row; r < a.rows; ++r) {
    const uint32_t count = (call.Seen(r, tile.token) + kRunTokens - 1) / kRunTokens;
    for (uint32_t g = 0; g < a.group; g += kBatch) {
      AttentionQuery* queries[kBatch];
      const uint32_t n = Batch(call, r, 0, g, queries);
      StoredScores(kv.k.format, n, queries, keys, count, KeyDims(kv.k.format, kv.head_dim));
    }
  }
}

// Calls add(lanes, token, weights) for each 16 tokens of a tile and each query that sees some of
// them: their weights by the query's finished softmax. Row by row, head by head.
template <class Add16>
void WeightsOfTile(const Call& call, const Tile& tile, const float* const* softmax,
                   const Add16& add) {
  const Args& a = call.a;
  const uint32_t row = FirstRowThatSees(call, tile.token);
  ScoresOfHead(call, tile, row);
  for (uint32_t r = row; r < a.rows; ++r) {
    const uint32_t n = call.Seen(r, tile.token);
    const uint64_t mask = call.Mask(r, a.kv_head_begin, tile.token, n);
    for (uint32_t head = 0; head < call.heads; ++head) {
      if (a.softcap != 0) CapScores(*call.query(r, head), n, a.softcap);
      const float* score = call.query(r, head)->score;
      const float* ended = softmax[r] + size_t{call.head_offset + head} * 2;
      for (uint32_t j = 0; j < n; j += 16) {
        const auto lanes = static_cast<uint32_t>(mask >> j & 0xffff);
        if (lanes == 0) continue;
        add(lanes, tile.token + j,
            Div(ExpNonPositive(Sub(Load(score + j), Set(ended[0]))), Set(ended[1])));
      }
    }
  }
}

// Calls weigh(call, tile, kv head - first) for the tiles of each kv head that a row sees.
template <class Weigh>
void ForTiles(const Args& args, const Weigh& weigh) {
  const uint32_t begin = args.span_begin * kAttentionSpan, end = args.span_end * kAttentionSpan;
  for (uint32_t kv = args.kv_head_begin; kv < args.kv_head_end; ++kv) {
    const Args one = OneHead(args, kv);
    const Call call(one, (kv - args.kv_head_begin) * args.group);
    BeginQueries(call);
    for (Tile tile = TileAt(call, call.FirstTile(begin), end); tile.runs > 0;
         tile = TileAt(call, tile.token + kAttentionTile, end)) {
      weigh(call, tile, kv - args.kv_head_begin);
    }
  }
}

void SumWeights(const Args& args, const float* const* softmax, float* const* sums) {
  const uint32_t begin = args.span_begin * kAttentionSpan;
  ForTiles(args, [&](const Call& call, const Tile& tile, uint32_t head) {
    WeightsOfTile(call, tile, softmax, [&](uint32_t lanes, uint32_t token, V16 weight) {
      float* const at = sums[head] + (token - begin);
      const V16 sum = Load(at);
      Store(at, SelectLanes(lanes, Add(sum, weight), sum));
    });
  });
}

void SumBlocks(const Args& args, const float* const* softmax, uint32_t first_block,
               float* const* sums) {
  ForTiles(args, [&](const Call& call, const Tile& tile, uint32_t head) {
    WeightsOfTile(call, tile, softmax, [&](uint32_t lanes, uint32_t token, V16 weight) {
      sums[head][token / kRunTokens - first_block] += SumTree(SelectLanes(lanes, weight, Zero()));
    });
  });
}

void Finish(const float* partial, uint32_t head_dim, float* out) {
  const V16 l = Set(partial[(head_dim + 15) / 16 * 16 + 1]);
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

const AttentionKernels kAttentionKernels = {Attend, SumWeights, SumBlocks, Merge, Finish, Scale};

}  // namespace kvasir::KVASIR_TARGET_NS
