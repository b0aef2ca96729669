// Products of several rows: a slice of a panel (some groups) is unpacked once for all rows, so that
// their loop only multiplies and adds, with its operands in L1.
#pragma once

#include "tensor/quant-inl.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

constexpr uint32_t kSliceGroups = 16;
constexpr uint32_t kMaxPackedRows = 8;  // more rows use slices
constexpr uint32_t kSlicedRows = 192;   // whose sums are held meanwhile

// Rows of one pass over packed weights.
constexpr uint32_t kPassRows = KVASIR_TARGET_ID == 2 ? 8 : 4;

// Rows x panels in registers. Without VNNI, sums of int16 need registers too.
#if KVASIR_TARGET_ID == 2 && KVASIR_VNNI
constexpr int kRegisterRows = 6, kRegisterPanels = 2;
#elif KVASIR_TARGET_ID == 1 && !KVASIR_VNNI
constexpr int kRegisterRows = 3, kRegisterPanels = 1;
#elif KVASIR_TARGET_ID == 0
constexpr int kRegisterRows = 2, kRegisterPanels = 1;
#else
constexpr int kRegisterRows = 4, kRegisterPanels = 1;
#endif

static_assert(kSlicedRows % kRegisterRows == 0 && kSlicedRows % kBlockRows == 0);

// What a slice of one panel needs: at most kMostGroups groups of codes, as the operands of Codes
// (PackedCodes), [8 quads][16 outputs][4] each, and their scales.
template <class S, class Codes, uint32_t kMostGroups>
struct Slice {
  alignas(64) std::byte codes[kMostGroups][512];
  Scales<S> scales[kMostGroups];

  // ahead: whether to prefetch later weights.
  void Load(const std::byte* panel, uint32_t first, uint32_t count, bool ahead) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t group = first + i, in_unit = group % S::kGroups;
      const std::byte* unit = panel + size_t{group} / S::kGroups * S::kLayout.unit_bytes();
      if (ahead) PrefetchAhead<S>(unit, in_unit);
      const Codes from{unit + S::kLayout.codes_offset() + in_unit * S::kGroupBytes};
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

// Memory to prefetch, step by step. It may end beyond the data: prefetching never faults.
struct Ahead {
  const std::byte* from;
  size_t step;  // bytes, a multiple of 64
  KV_INLINE void Ask(uint32_t i) const {
    for (size_t at = i * step; at < (i + 1) * step; at += 64) __builtin_prefetch(from + at, 0, 2);
  }
};

template <class S>
using LaneSlice = Slice<S, PackedCodes<S>, kSliceGroups>;

// Adds groups [first, first + count) of kRegisterPanels panels to the sums of rows [row, row +
// kRegisterRows), in order; group 0 begins them. Repeats the last row for rows at or beyond `end`,
// into spare sums. Prefetches the weights of the panels' next slices, group by group: while they
// are read, these are multiplied.
template <class S>
void AddSliceByLanes(const MatMulArgs& a, const ActivationLayout& layout,
                     const LaneSlice<S>* slices, uint32_t first, uint32_t count, uint32_t row,
                     uint32_t end, const Ahead* weights, float (*sums)[kRegisterPanels][16]) {
  const std::byte* rows[kRegisterRows];
  for (uint32_t r = 0; r < kRegisterRows; ++r) {
    rows[r] = a.x + (row + r < end ? row + r : end - 1) * a.x_stride;
  }
  const size_t next_rows = kRegisterRows * a.x_stride;
  V16 sum[kRegisterRows][kRegisterPanels];
  KV_UNROLL for (int r = 0; r < kRegisterRows; ++r) {
    KV_UNROLL for (int p = 0; p < kRegisterPanels; ++p) {
      sum[r][p] = first == 0 ? Zero() : Load(sums[r][p]);
    }
  }
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t group = first + i;
    if (i % 2 == 0) {
      KV_UNROLL for (int r = 0; r < kRegisterRows; ++r) {
        __builtin_prefetch(rows[r] + next_rows + group * kGroup);
      }
    }
    ReadyCodes codes[kRegisterPanels];
    KV_UNROLL for (int p = 0; p < kRegisterPanels; ++p) {
      codes[p].codes = slices[p].codes[i];
      weights[p].Ask(i);
    }
    GroupDots<S, kRegisterRows, kRegisterPanels> dots(rows, layout.offsets_at(), group);
    dots.Add(codes, rows, group);
    KV_UNROLL for (int p = 0; p < kRegisterPanels; ++p) {
      Join<S, kRegisterRows, kRegisterPanels>(dots, p, slices[p].scales[i], rows, layout, group,
                                              sum);
    }
  }
  KV_UNROLL for (int r = 0; r < kRegisterRows; ++r) {
    KV_UNROLL for (int p = 0; p < kRegisterPanels; ++p) Store(sums[r][p], sum[r][p]);
  }
}

// Multiplies rows [row, row + count), at most kSlicedRows, of all panels.
template <class S>
void MultiplySliced(const MatMulArgs& a, uint32_t row, uint32_t count) {
  const ActivationLayout layout(a.k);
  const uint32_t groups = (a.k + kGroup - 1) / kGroup, end = row + count;
  const uint32_t passes = (count + kRegisterRows - 1) / kRegisterRows;
  const uint64_t panel_bytes = PanelBytes(S::kFormat, a.k);
  static_assert(kSliceGroups % S::kGroups == 0);
  alignas(64) float sums[kSlicedRows + kRegisterRows][kRegisterPanels][16];
  LaneSlice<S> slices[kRegisterPanels];
  if ((a.panel_end - a.panel_begin) % kRegisterPanels != 0) {
    __builtin_memset(slices, 0, sizeof(slices));  // an odd last pair reads the second, too
  }
  for (uint32_t panel = a.panel_begin; panel < a.panel_end; panel += kRegisterPanels) {
    const uint32_t panels =
        a.panel_end - panel < kRegisterPanels ? a.panel_end - panel : kRegisterPanels;
    for (uint32_t first = 0; first < groups; first += kSliceGroups) {
      const uint32_t n = groups - first < kSliceGroups ? groups - first : kSliceGroups;
      const bool begins = panel == a.panel_begin && first == 0;
      for (uint32_t p = 0; p < panels; ++p) {
        slices[p].Load(a.w + (panel + p) * panel_bytes, first, n, begins);
      }
      const bool last = first + n == groups;
      const uint64_t at =
          last ? kRegisterPanels * panel_bytes : (first + n) / S::kGroups * S::kLayout.unit_bytes();
      const uint64_t bytes = kSliceGroups / S::kGroups * S::kLayout.unit_bytes();
      const size_t step = (bytes / (passes * n) + 63) / 64 * 64;
      Ahead ahead[kRegisterPanels];
      for (uint32_t p = 0; p < kRegisterPanels; ++p) {
        ahead[p] = {a.w + (panel + p) * panel_bytes + at, step};
      }
      for (uint32_t r = row; r < end; r += kRegisterRows) {
        AddSliceByLanes<S>(a, layout, slices, first, n, r, end, ahead, sums + (r - row));
        const bool asked = ((r - row) / kRegisterRows + 1) * n * step >= bytes;
        for (Ahead& next : ahead) next = {next.from + n * step, asked ? 0 : step};
      }
    }
    for (uint32_t r = 0; r < count; ++r) {
      for (uint32_t p = 0; p < panels; ++p) {
        StoreSums(a, row + r, panel + p, Load(sums[r][p]));
      }
    }
  }
}

// Uses the least kRows that holds the rows from `row` on, at most kPassRows: a power of two, or the
// 5 of a beam search.
template <class S, uint32_t kRows = kPassRows>
void PackedPass(const MatMulArgs& a, uint32_t row, uint32_t panel) {
  if constexpr (kRows == 8) {
    if (a.rows - row == 5) return MultiplyPacked<S, 5>(a, row, panel);
  }
  if constexpr (kRows > 1) {
    if (a.rows - row <= kRows / 2) return PackedPass<S, kRows / 2>(a, row, panel);
  }
  MultiplyPacked<S, kRows>(a, row, panel);
}

template <class S>
struct LaneProduct {
  static void Run(const MatMulArgs& a) {
    if (a.rows <= kMaxPackedRows) {
      for (uint32_t panel = a.panel_begin; panel < a.panel_end; ++panel) {
        for (uint32_t row = 0; row < a.rows; row += kPassRows) PackedPass<S>(a, row, panel);
      }
      return;
    }
    for (uint32_t row = 0; row < a.rows; row += kSlicedRows) {
      const uint32_t left = a.rows - row;
      MultiplySliced<S>(a, row, left < kSlicedRows ? left : kSlicedRows);
    }
  }
};

constexpr QuantKernels kLaneKernels = {QuantiseRows, ForFormat<LaneProduct>, kSlicedRows};

}  // namespace

#ifndef KVASIR_TILED  // tensor/quant_tile-inl.h: the target has tiles for most of it
const QuantKernels kQuantKernels = kLaneKernels;
#endif

}  // namespace kvasir::KVASIR_TARGET_NS
