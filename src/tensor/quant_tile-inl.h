// Products by tiles: 16 rows x 32 columns of activations times 32 columns x 16 outputs of weights,
// the whole of a group in one instruction (TDPBSSD, exact int32). `Tiles` is the tile unit: the
// CPU's, or one in plain C++.
#pragma once

#include "tensor/quant_slice-inl.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

constexpr uint32_t kTileRows = 16;
constexpr uint32_t kTiledRows = 256;

// Codes of a group as the tile unit takes them: signed.
template <class S>
struct SignedCodes {
  const std::byte* codes;
  template <int q>
  KV_INLINE Bytes Quad() const {
    const Bytes v = S::template Quad<q>(codes);
    if constexpr (S::kSigned) return v;
    return SubBytes(v, SetBytes(static_cast<int8_t>(S::kLayout.zero)));
  }
};

// Adds a group's dot products of kTileRows rows to their sums. rows: the first row.
template <class S>
KV_INLINE void JoinTile(const MatMulArgs& a, const ActivationLayout& layout, const Scales<S>& w,
                        const std::byte* rows, uint32_t group, const int32_t (*dots)[kTileRows][16],
                        V16* sum) {
  KV_UNROLL for (uint32_t r = 0; r < kTileRows; ++r) {
    const std::byte* row = rows + r * a.x_stride;
    const V16 da = Set(RowScale(row, layout.scales_at(), group));
    KV_UNROLL for (int h = 0; h < S::kSums; ++h) {
      sum[r] = Fma(LoadInts(dots[h][r]), Mul(w.scale[h], da), sum[r]);
    }
    if constexpr (S::kLayout.minimum) {
      const V16 total = Set(RowScale(row, layout.scaled_sums_at(), group));
      sum[r] = Fma(w.minimum, total, sum[r]);
    }
  }
}

// Adds groups [first, first + count) to the sums of kTileRows rows of one panel, in order.
// Products, their way through memory and the sums are a group apart each, so that none waits for
// another.
template <class S, class Tiles>
void AddSliceByTiles(const MatMulArgs& a, const ActivationLayout& layout, const Slice<S>& slice,
                     uint32_t first, uint32_t count, uint32_t row, float (*sums)[16]) {
  const std::byte* rows = a.x + row * a.x_stride;
  alignas(64) int32_t dots[2][S::kSums][kTileRows][16];  // of a slot
  V16 sum[kTileRows];
  KV_UNROLL for (uint32_t r = 0; r < kTileRows; ++r) sum[r] = Load(sums[r]);
  for (uint32_t i = 0; i < count + 2; ++i) {
    if (i < count) {
      const std::byte* q = rows + size_t{first + i} * kGroup;
      if (i % 2 == 0) {
        Tiles::template Multiply<S::kSums, 0>(q, a.x_stride, slice.codes[i]);
        KV_UNROLL for (uint32_t r = 0; r < kTileRows; ++r) {  // of the next rows
          __builtin_prefetch(q + (r + kTileRows) * a.x_stride);
        }
      } else {
        Tiles::template Multiply<S::kSums, 1>(q, a.x_stride, slice.codes[i]);
      }
    }
    if (i % 2 == 1 && i <= count) Tiles::template Store<S::kSums, 0>(dots[0][0][0]);
    if (i % 2 == 0 && i > 0 && i <= count) Tiles::template Store<S::kSums, 1>(dots[1][0][0]);
    if (i < 2) continue;
    JoinTile<S>(a, layout, slice.scales[i - 2], rows, first + i - 2, dots[i % 2], sum);
  }
  KV_UNROLL for (uint32_t r = 0; r < kTileRows; ++r) Store(sums[r], sum[r]);
}

// Rows [row, row + count), a multiple of kTileRows, of all panels.
template <class S, class Tiles>
void MultiplyTiled(const MatMulArgs& a, uint32_t row, uint32_t count) {
  const ActivationLayout layout(a.k);
  const uint32_t groups = (a.k + kGroup - 1) / kGroup;
  const uint64_t panel_bytes = PanelBytes(S::kFormat, a.k);
  alignas(64) float sums[kTiledRows][16];
  Slice<S> slice;
  for (uint32_t panel = a.panel_begin; panel < a.panel_end; ++panel) {
    for (uint32_t r = 0; r < count; ++r) Store(sums[r], Zero());
    for (uint32_t first = 0; first < groups; first += kSliceGroups) {
      const uint32_t n = groups - first < kSliceGroups ? groups - first : kSliceGroups;
      slice.template Load<SignedCodes<S>>(a.w + panel * panel_bytes, first, n);
      for (uint32_t r = 0; r < count; r += kTileRows) {
        AddSliceByTiles<S, Tiles>(a, layout, slice, first, n, row + r, sums + r);
      }
    }
    for (uint32_t r = 0; r < count; ++r) StoreSums(a, row + r, panel, Load(sums[r]));
  }
}

// Whole tiles of rows; `lanes` multiplies the rest, whose activations are the same.
template <class S, class Tiles>
void TileProduct(const MatMulArgs& a, const QuantKernels& lanes) {
  const uint32_t whole = a.rows / kTileRows * kTileRows;
  if (whole != 0) {
    const typename Tiles::Session session;
    for (uint32_t row = 0; row < whole; row += kTiledRows) {
      MultiplyTiled<S, Tiles>(a, row, whole - row < kTiledRows ? whole - row : kTiledRows);
    }
  }
  if (whole == a.rows) return;
  static_assert(kFlipSigned);  // as theirs, so that the offsets of the rows fit
  MatMulArgs rest = a;
  rest.x += whole * a.x_stride;
  rest.y += whole * a.y_stride;
  rest.rows -= whole;
  lanes.mat_mul(rest);
}

}  // namespace
}  // namespace kvasir::KVASIR_TARGET_NS
