// Products of several rows: a slice of a panel (some groups) is unpacked once for all of them, so
// that their loop has products and sums alone, and its operands in the first cache.
#pragma once

#include "tensor/quant-inl.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

constexpr uint32_t kSliceGroups = 16;
constexpr uint32_t kFewRows = 8;    // up to these go without slices
constexpr uint32_t kRowChunk = 96;  // rows whose sums are held meanwhile

// Of a pass over packed weights.
constexpr uint32_t kSomeRows = KVASIR_TARGET_ID == 2 ? 8 : 4;

// Rows x panels in registers. Without VNNI, sums of int16 need registers too.
#if KVASIR_TARGET_ID == 2 && KVASIR_VNNI
constexpr int kTileRows = 6, kTilePanels = 2;
#elif KVASIR_TARGET_ID == 1 && !KVASIR_VNNI
constexpr int kTileRows = 3, kTilePanels = 1;
#elif KVASIR_TARGET_ID == 0
constexpr int kTileRows = 2, kTilePanels = 1;
#else
constexpr int kTileRows = 4, kTilePanels = 1;
#endif

static_assert(kRowChunk % kTileRows == 0);

// What a slice of one panel needs: codes and scales, group after group.
template <class S>
struct Slice {
  alignas(64) std::byte codes[kSliceGroups][512];
  Scales<S> scales[kSliceGroups];

  // Operand: what becomes of a quad (PackedCodes).
  template <class Operand>
  void Load(const std::byte* panel, uint32_t first, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t group = first + i, in_unit = group % S::kGroups;
      const std::byte* unit = panel + size_t{group} / S::kGroups * S::kLayout.unit_bytes();
      PrefetchAhead<S>(unit, in_unit);
      const Operand from{unit + S::kLayout.codes_offset() + in_unit * S::kGroupBytes};
      StoreBytes(codes[i], from.template Quad<0>());
      StoreBytes(codes[i] + 64, from.template Quad<1>());
      StoreBytes(codes[i] + 128, from.template Quad<2>());
      StoreBytes(codes[i] + 192, from.template Quad<3>());
      StoreBytes(codes[i] + 256, from.template Quad<4>());
      StoreBytes(codes[i] + 320, from.template Quad<5>());
      StoreBytes(codes[i] + 384, from.template Quad<6>());
      StoreBytes(codes[i] + 448, from.template Quad<7>());
      scales[i] = Scales<S>(unit, in_unit);
    }
  }
};

// Adds groups [first, first + count) of kTilePanels panels to the sums of rows [row, row +
// kTileRows), in order. Those at or beyond `end` are the last again, into spare sums.
template <class S>
void AddGroups(const MatMulArgs& a, const ActivationLayout& layout, const Slice<S>* slices,
               uint32_t first, uint32_t count, uint32_t row, uint32_t end,
               float (*sums)[kTilePanels][16]) {
  const std::byte* rows[kTileRows];
  for (uint32_t r = 0; r < kTileRows; ++r) {
    rows[r] = a.rows + (row + r < end ? row + r : end - 1) * a.row_stride;
  }
  const size_t next_rows = kTileRows * a.row_stride;
  V16 sum[kTileRows][kTilePanels];
  KV_UNROLL for (int r = 0; r < kTileRows; ++r) {
    KV_UNROLL for (int p = 0; p < kTilePanels; ++p) sum[r][p] = Load(sums[r][p]);
  }
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t group = first + i;
    if (i % 2 == 0) {
      KV_UNROLL for (int r = 0; r < kTileRows; ++r) {
        __builtin_prefetch(rows[r] + next_rows + group * kGroup);
      }
    }
    ReadyCodes codes[kTilePanels];
    KV_UNROLL for (int p = 0; p < kTilePanels; ++p) codes[p].codes = slices[p].codes[i];
    GroupDots<S, kTileRows, kTilePanels> dots(rows, layout.offsets_at(), group);
    dots.Add(codes, rows, group);
    KV_UNROLL for (int p = 0; p < kTilePanels; ++p) {
      Join<S, kTileRows, kTilePanels>(dots, p, slices[p].scales[i], rows, layout, group, sum);
    }
  }
  KV_UNROLL for (int r = 0; r < kTileRows; ++r) {
    KV_UNROLL for (int p = 0; p < kTilePanels; ++p) Store(sums[r][p], sum[r][p]);
  }
}

// Rows [row, row + count), at most kRowChunk, of all panels.
template <class S>
void BlockRows(const MatMulArgs& a, uint32_t row, uint32_t count) {
  const ActivationLayout layout(a.k);
  const uint32_t groups = (a.k + kGroup - 1) / kGroup, end = row + count;
  const uint64_t panel_bytes = PanelBytes(S::kFormat, a.k);
  alignas(64) float sums[kRowChunk + kTileRows][kTilePanels][16];
  Slice<S> slices[kTilePanels] = {};  // of an odd number's missing last too
  for (uint32_t panel = a.panel_begin; panel < a.panel_end; panel += kTilePanels) {
    const uint32_t panels = a.panel_end - panel < kTilePanels ? a.panel_end - panel : kTilePanels;
    __builtin_memset(sums, 0, sizeof(sums[0]) * (count + kTileRows));
    for (uint32_t first = 0; first < groups; first += kSliceGroups) {
      const uint32_t n = groups - first < kSliceGroups ? groups - first : kSliceGroups;
      for (uint32_t p = 0; p < panels; ++p) {
        slices[p].template Load<PackedCodes<S>>(a.w + (panel + p) * panel_bytes, first, n);
      }
      for (uint32_t r = row; r < end; r += kTileRows) {
        AddGroups<S>(a, layout, slices, first, n, r, end, sums + (r - row));
      }
    }
    for (uint32_t r = 0; r < count; ++r) {
      for (uint32_t p = 0; p < panels; ++p) {
        StoreSums(a, row + r, panel + p, Load(sums[r][p]));
      }
    }
  }
}

// At most kSomeRows rows from `row` on.
template <class S, uint32_t kRows = kSomeRows>
void SomeRows(const MatMulArgs& a, uint32_t row, uint32_t panel) {
  if constexpr (kRows > 1) {
    if (a.row_count - row <= kRows / 2) return SomeRows<S, kRows / 2>(a, row, panel);
  }
  FewRows<S, kRows>(a, row, panel);
}

template <class S>
struct LaneProduct {
  static void Run(const MatMulArgs& a) {
    if (a.row_count <= kFewRows) {
      for (uint32_t panel = a.panel_begin; panel < a.panel_end; ++panel) {
        for (uint32_t row = 0; row < a.row_count; row += kSomeRows) SomeRows<S>(a, row, panel);
      }
      return;
    }
    for (uint32_t row = 0; row < a.row_count; row += kRowChunk) {
      const uint32_t left = a.row_count - row;
      BlockRows<S>(a, row, left < kRowChunk ? left : kRowChunk);
    }
  }
};

}  // namespace
}  // namespace kvasir::KVASIR_TARGET_NS
