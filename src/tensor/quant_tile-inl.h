// Products by tiles: 16 rows x 32 columns of activations times 32 columns x 16 outputs of weights,
// a whole group in one instruction (TDPBSSD, exact int32). `Tiles` is the tile unit: the
// CPU's, or one in plain C++.
#pragma once

#define KVASIR_TILED
#include "tensor/quant_slice-inl.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

constexpr uint32_t kTileRows = kBlockRows;
constexpr uint32_t kTileBytes = 512;
constexpr uint32_t kTiledRows = 256;  // of an item: with a slice's groups, 512 KiB of L2
constexpr uint32_t kTileGroups = 64;  // of a slice
constexpr uint32_t kTilePanels = 8;   // whose sums wait for the next slice

// A whole block of rows: tiles int8 [groups][16][32], then scales and scaled sums, f32
// [groups][16] each.
struct TileLayout {
  explicit constexpr TileLayout(uint32_t k) : groups((k + 63) / 64 * 2) {}
  constexpr uint64_t scales_at() const { return groups * kTileBytes; }
  constexpr uint64_t scaled_sums_at() const { return scales_at() + groups * kTileRows * 4; }
  constexpr uint64_t bytes() const { return scaled_sums_at() + groups * kTileRows * 4; }

  uint64_t groups;
};
static_assert(TileLayout(64).bytes() <= kTileRows * ActivationLayout(64).bytes());

void QuantiseTiles(const QuantiseArgs& a) {
  if (a.rows < kTileRows) return QuantiseRows(a);  // the lanes multiply them
  const TileLayout layout(a.k);
  auto* scales = reinterpret_cast<float*>(a.out + layout.scales_at());
  auto* scaled_sums = reinterpret_cast<float*>(a.out + layout.scaled_sums_at());
  const bool minimum = LayoutOf(a.format).minimum;
  for (uint32_t r = 0; r < kTileRows; ++r) {
    const float* x = a.x + r * a.x_stride;
    for (uint64_t g = 0; g < layout.groups; ++g) {
      const RoundedGroup rounded(x, a.k, static_cast<uint32_t>(g) * kGroup);
      auto* codes = reinterpret_cast<int8_t*>(a.out + g * kTileBytes + r * kGroup);
      StoreI8(codes, rounded.q[0]);
      StoreI8(codes + 16, rounded.q[1]);
      scales[g * kTileRows + r] = rounded.scale;
      if (!minimum) continue;
      scaled_sums[g * kTileRows + r] = rounded.scale * rounded.Sum();
    }
  }
}

// Signed codes of a group for the tile unit.
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

template <class S>
using TileSlice = Slice<S, SignedCodes<S>, kTileGroups>;

// Groups [first, first + count) of kTileRows rows and one panel, added to their sums in order.
// Products, their stores and the sums each work on a different group, so that none waits for
// another.
template <class S, class Tiles>
class TileSums {
 public:
  // block: the rows. Prefetches the next rows and weights, group by group.
  KV_INLINE TileSums(const TileLayout& layout, const TileSlice<S>& slice, const std::byte* block,
                     uint32_t first, const Ahead& rows, const Ahead& weights)
      : slice_(slice),
        tiles_(block + first * kTileBytes),
        scales_(reinterpret_cast<const float*>(block + layout.scales_at()) + first * kTileRows),
        totals_(reinterpret_cast<const float*>(block + layout.scaled_sums_at()) +
                first * kTileRows),
        rows_(rows),
        weights_(weights) {}

  KV_INLINE void Add(uint32_t count, V16* sum) {
    Multiply<0>(0);
    if (count == 1) {
      Tiles::template Store<S::kSums, 0>(dots_[0][0][0]);
      return Join<0>(0, sum);
    }
    Multiply<1>(1);
    Tiles::template Store<S::kSums, 0>(dots_[0][0][0]);
    uint32_t i = 2;
    for (; i + 1 < count; i += 2) {
      Multiply<0>(i);
      Tiles::template Store<S::kSums, 1>(dots_[1][0][0]);
      Join<0>(i - 2, sum);
      Multiply<1>(i + 1);
      Tiles::template Store<S::kSums, 0>(dots_[0][0][0]);
      Join<1>(i - 1, sum);
    }
    Tiles::template Store<S::kSums, 1>(dots_[1][0][0]);
    Join<0>(i - 2, sum);
    Join<1>(i - 1, sum);
    if (i == count) return;
    Multiply<0>(i);
    Tiles::template Store<S::kSums, 0>(dots_[0][0][0]);
    Join<0>(i, sum);
  }

 private:
  template <int slot>
  KV_INLINE void Multiply(uint32_t i) {
    Tiles::template Multiply<S::kSums, slot>(tiles_ + i * kTileBytes, slice_.codes[i]);
    rows_.Ask(i);
    weights_.Ask(i);
  }

  template <int slot>
  KV_INLINE void Join(uint32_t i, V16* sum) const {
    const Scales<S>& w = slice_.scales[i];
    KV_UNROLL for (uint32_t r = 0; r < kTileRows; ++r) {
      const V16 scale = Set(scales_[i * kTileRows + r]);
      KV_UNROLL for (int h = 0; h < S::kSums; ++h) {
        sum[r] = Fma(LoadInts(dots_[slot][h][r]), Mul(w.scale[h], scale), sum[r]);
      }
      if constexpr (S::kLayout.minimum) {
        sum[r] = Fma(w.minimum, Set(totals_[i * kTileRows + r]), sum[r]);
      }
    }
  }

  const TileSlice<S>& slice_;
  const std::byte* tiles_;
  const float *scales_, *totals_;
  const Ahead rows_, weights_;
  alignas(64) int32_t dots_[2][S::kSums][kTileRows][16];  // of a slot
};

// Multiplies rows [row, row + count), whole blocks, of at most kTilePanels panels from `panel` on.
template <class S, class Tiles>
void MultiplyTiled(const MatMulArgs& a, uint32_t row, uint32_t count, uint32_t panel,
                   uint32_t panels) {
  const TileLayout layout(a.k);
  const uint32_t groups = (a.k + kGroup - 1) / kGroup, blocks = count / kTileRows;
  const auto weights_at = [&](uint32_t p, uint32_t group) {
    return a.w + (panel + p) * PanelBytes(S::kFormat, a.k) +
           size_t{group} / S::kGroups * S::kLayout.unit_bytes();
  };
  alignas(64) float sums[kTilePanels][kTiledRows][16];
  TileSlice<S> slice;
  static_assert(kTileGroups % S::kGroups == 0);
  for (uint32_t first = 0; first < groups; first += kTileGroups) {
    const uint32_t n = groups - first < kTileGroups ? groups - first : kTileGroups;
    const bool last = first + n == groups;
    const size_t slice_bytes =
        (last ? weights_at(1, 0) : weights_at(0, first + n)) - weights_at(0, first);
    const size_t step = (slice_bytes / (blocks * n) + 63) / 64 * 64;
    for (uint32_t p = 0; p < panels; ++p) {
      slice.Load(weights_at(p, 0), first, n,
                 row == 0 && panel == a.panel_begin && p == 0 && first == 0);
      const std::byte* next = p + 1 < panels ? weights_at(p + 1, first)
                              : last         ? weights_at(panels, 0)
                                             : weights_at(0, first + n);
      for (uint32_t b = 0; b < blocks; ++b) {
        const std::byte* block = a.x + size_t{row + b * kTileRows} * a.x_stride;
        const std::byte* next_block = block + kTileRows * a.x_stride + first * kTileBytes;
        const bool rows_ahead = p == 0 && b + 1 < blocks;  // later panels find them in L2
        const bool weights_ahead = b * n * step < slice_bytes;
        float(*sums_at)[16] = sums[p] + b * kTileRows;
        V16 sum[kTileRows];
        KV_UNROLL for (uint32_t r = 0; r < kTileRows; ++r) {
          sum[r] = first == 0 ? Zero() : Load(sums_at[r]);
        }
        TileSums<S, Tiles>(layout, slice, block, first,
                           Ahead{next_block, rows_ahead ? kTileBytes : 0},
                           Ahead{next + b * n * step, weights_ahead ? step : 0})
            .Add(n, sum);
        KV_UNROLL for (uint32_t r = 0; r < kTileRows; ++r) {
          if (last) {
            StoreSums(a, row + b * kTileRows + r, panel + p, sum[r]);
          } else {
            Store(sums_at[r], sum[r]);
          }
        }
      }
    }
  }
}

// Multiplies whole blocks of rows; `lanes` multiplies the rest.
template <class S, class Tiles>
void TileProduct(const MatMulArgs& a, const QuantKernels& lanes) {
  const uint32_t whole = a.rows / kTileRows * kTileRows;
  if (whole != 0) {
    const typename Tiles::Session session;
    for (uint32_t row = 0; row < whole; row += kTiledRows) {
      const uint32_t count = whole - row < kTiledRows ? whole - row : kTiledRows;
      for (uint32_t panel = a.panel_begin; panel < a.panel_end; panel += kTilePanels) {
        const uint32_t left = a.panel_end - panel;
        MultiplyTiled<S, Tiles>(a, row, count, panel, left < kTilePanels ? left : kTilePanels);
      }
    }
  }
  if (whole == a.rows) return;
  static_assert(kFlipSigned);  // like the lanes, so that the offsets of the rows fit
  MatMulArgs rest = a;
  rest.x += whole * a.x_stride;
  rest.y += whole * a.y_stride;
  rest.rows -= whole;
  lanes.mat_mul(rest);
}

}  // namespace
}  // namespace kvasir::KVASIR_TARGET_NS
