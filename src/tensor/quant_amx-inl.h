// Products by tiles: 16 rows x 32 columns of activations times 32 columns x 16 outputs of weights,
// the whole of a group in one instruction (TDPBSSD, exact int32). `Tiles` is the tile unit: the
// CPU's, or one in plain C++. Few rows go by the lanes of quant-inl.h instead.
#pragma once

#include "tensor/quant-inl.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

constexpr uint32_t kTileRows = 16;
constexpr uint32_t kSliceGroups = 32;    // columns / 32 that are unpacked at a time: 16 KiB
constexpr uint32_t kMaxBlockRows = 256;  // rows whose sums are held meanwhile: 16 KiB

// Signed codes of a group, [8 quads][16 outputs][4].
template <class S>
KV_INLINE void UnpackGroup(const std::byte* codes, std::byte* out) {
  [[maybe_unused]] const Bytes zero = SetBytes(static_cast<int8_t>(S::kLayout.zero));
  const auto store = [&](int quad, Bytes b) {
    StoreBytes(out + quad * 64, S::kSigned ? b : SubBytes(b, zero));
  };
  Bytes low, high;
  S::template Quads<0>(codes, &low, &high);
  store(0, low), store(4, high);
  S::template Quads<1>(codes, &low, &high);
  store(1, low), store(5, high);
  S::template Quads<2>(codes, &low, &high);
  store(2, low), store(6, high);
  S::template Quads<3>(codes, &low, &high);
  store(3, low), store(7, high);
}

// What a slice of one panel needs: signed codes and scales, group after group.
template <class S>
struct Slice {
  alignas(64) std::byte unpacked[kSliceGroups][512];
  const std::byte* codes[kSliceGroups];
  V16 scale[kSliceGroups][S::kSums];
  V16 minimum[kSliceGroups];

  void Load(const std::byte* panel, uint32_t first, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t group = first + i, in_unit = group % S::kGroups;
      const std::byte* unit = panel + size_t{group} / S::kGroups * S::kLayout.unit_bytes();
      codes[i] = unit + S::kLayout.codes_offset() + in_unit * S::kGroupBytes;
      for (uint32_t line = 0; line < S::kGroupBytes; line += 64) {  // of the next slice
        __builtin_prefetch(codes[i] + size_t{kSliceGroups} * S::kGroupBytes + line);
      }
      if constexpr (S::kLayout.code_bits != 8) {
        UnpackGroup<S>(codes[i], unpacked[i]);
        codes[i] = unpacked[i];
      }
      const Scales<S> scales(unit, in_unit);
      for (int h = 0; h < S::kSums; ++h) scale[i][h] = scales.scale[h];
      if constexpr (S::kLayout.minimum) minimum[i] = scales.minimum;
    }
  }
};

// Adds groups [first, first + count) to the sums of kTileRows rows of one panel, in order.
template <class S, class Tiles>
void AddSlice(const MatMulArgs& a, const ActivationLayout& layout, const Slice<S>& slice,
              uint32_t first, uint32_t count, uint32_t row, float (*sums)[16]) {
  const std::byte* rows = a.rows + row * a.row_stride;
  alignas(64) int32_t dots[2][S::kSums][kTileRows][16];
  V16 sum[kTileRows];
  for (uint32_t r = 0; r < kTileRows; ++r) sum[r] = Load(sums[r]);
  for (uint32_t i = 0; i <= count; ++i) {
    if (i < count) {  // the tile unit is one group ahead of the lanes
      const std::byte* q = rows + size_t{first + i} * kGroup;
      Tiles::template Multiply<S::kSums>(q, a.row_stride, slice.codes[i], dots[i & 1][0][0]);
    }
    if (i == 0) continue;
    const uint32_t g = i - 1;
    const std::byte* scales = rows + layout.scales_at() + (first + g) * 4;
    [[maybe_unused]] const std::byte* totals = rows + layout.scaled_sums_at() + (first + g) * 4;
    for (uint32_t r = 0; r < kTileRows; ++r) {
      const V16 da = Set(RowScale(scales + r * a.row_stride, 0, 0));
      for (int h = 0; h < S::kSums; ++h) {
        const V16 dot = LoadInts(dots[g & 1][h][r]);
        sum[r] = Fma(dot, Mul(slice.scale[g][h], da), sum[r]);
      }
      if constexpr (S::kLayout.minimum) {
        const V16 total = Set(RowScale(totals + r * a.row_stride, 0, 0));
        sum[r] = Fma(slice.minimum[g], total, sum[r]);
      }
    }
  }
  for (uint32_t r = 0; r < kTileRows; ++r) Store(sums[r], sum[r]);
}

// Rows [row, row + count), a multiple of kTileRows, of all panels.
template <class S, class Tiles>
void TileRows(const MatMulArgs& a, uint32_t row, uint32_t count) {
  const ActivationLayout layout(a.k);
  const uint32_t groups = (a.k + kGroup - 1) / kGroup;
  const uint64_t panel_bytes = PanelBytes(S::kFormat, a.k);
  alignas(64) float sums[kMaxBlockRows][16];
  Slice<S> slice;
  for (uint32_t panel = a.panel_begin; panel < a.panel_end; ++panel) {
    for (uint32_t r = 0; r < count; ++r) Store(sums[r], Zero());
    for (uint32_t first = 0; first < groups; first += kSliceGroups) {
      const uint32_t n = groups - first < kSliceGroups ? groups - first : kSliceGroups;
      slice.Load(a.w + panel * panel_bytes, first, n);
      for (uint32_t r = 0; r < count; r += kTileRows) {
        AddSlice<S, Tiles>(a, layout, slice, first, n, row + r, sums + r);
      }
    }
    for (uint32_t r = 0; r < count; ++r) StoreSums(a, row + r, panel, Load(sums[r]));
  }
}

template <class S, class Tiles>
void TileProductOf(const MatMulArgs& a) {
  uint32_t row = 0;
  if (a.row_count >= kTileRows) {
    const typename Tiles::Session session;
    while (a.row_count - row >= kTileRows) {
      const uint32_t left = (a.row_count - row) / kTileRows * kTileRows;
      const uint32_t count = left < kMaxBlockRows ? left : kMaxBlockRows;
      TileRows<S, Tiles>(a, row, count);
      row += count;
    }
  }
  if (row == a.row_count) return;
  MatMulArgs rest = a;
  rest.rows += row * a.row_stride;
  rest.y += row * a.y_stride;
  rest.row_count -= row;
  RowProduct<S>::Run(rest);
}

}  // namespace
}  // namespace kvasir::KVASIR_TARGET_NS
