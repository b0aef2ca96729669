// The lanes of tensor/kernels.h, compiled once per target. Each output is one lane's sum in a fixed
// order, so results do not depend on the shape of the batch or the width of a register.
#pragma once

#include "simd/tanh16-inl.h"
#include "simd/vec16-inl.h"
#include "tensor/kernels.h"
#include "tensor/store_sums-inl.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

#if KVASIR_TARGET_ID == 2
constexpr int kMaxRows = 8;
constexpr int PanelsFor(int rows) { return rows >= 5 ? 3 : rows >= 3 ? 6 : 4; }
#elif KVASIR_TARGET_ID == 1
constexpr int kMaxRows = 6;
constexpr int PanelsFor(int rows) { return rows >= 3 ? 1 : rows == 2 ? 2 : 4; }
#else
constexpr int kMaxRows = 2;
constexpr int PanelsFor(int) { return 1; }
#endif

using MatMulArgs = TensorKernels::MatMulArgs;

// Prefetch distance in bytes of a panel. Decode of 1B in BF16 on two cores of a Sapphire Rapids:
// 11.6 tokens/s (bound: 14.4) without prefetch and eight panels at a time; 14.1 with it and four
// panels (two or three panels, or 1 to 4 KiB, give the same or less).
constexpr size_t kPrefetchAhead = 2048;

// Adds `columns` columns to kRows x kPanels sums in registers, each in order. w: panels
// panel_bytes apart; kAskAhead: prefetch, because they may not be in a cache.
template <class Weight, int kRows, int kPanels, bool kAskAhead>
KV_INLINE void AddColumns(const float* x, size_t x_stride, const std::byte* w, size_t panel_bytes,
                          uint32_t columns, V16 (*sum)[kPanels]) {
  constexpr size_t kColumnBytes = kPanelOutputs * Weight::kBytes;
  for (uint32_t k = 0; k < columns; ++k) {
    const size_t at = k * kColumnBytes;
    if (kAskAhead && at % 64 == 0) {
      KV_UNROLL for (int p = 0; p < kPanels; ++p) {
        __builtin_prefetch(w + p * panel_bytes + at + kPrefetchAhead);
      }
    }
    V16 weight[kPanels];
    KV_UNROLL for (int p = 0; p < kPanels; ++p) weight[p] = Weight::At(w + p * panel_bytes + at);
    KV_UNROLL for (int r = 0; r < kRows; ++r) {
      const V16 xk = Set(x[r * x_stride + k]);
      KV_UNROLL for (int p = 0; p < kPanels; ++p) sum[r][p] = Fma(xk, weight[p], sum[r][p]);
    }
  }
}

template <class Weight, int kRows, int kPanels>
KV_INLINE void Block(const MatMulArgs& a, uint32_t row, uint32_t panel) {
  const size_t panel_bytes = size_t{a.k} * kPanelOutputs * Weight::kBytes;
  V16 sum[kRows][kPanels];
  KV_UNROLL for (int r = 0; r < kRows; ++r) {
    KV_UNROLL for (int p = 0; p < kPanels; ++p) sum[r][p] = Zero();
  }
  AddColumns<Weight, kRows, kPanels, true>(a.x + row * a.x_stride, a.x_stride,
                                           a.w + panel * panel_bytes, panel_bytes, a.k, sum);
  for (int p = 0; p < kPanels; ++p) {
    for (int r = 0; r < kRows; ++r) StoreSums(a, row + r, panel + p, sum[r][p]);
  }
}

template <class Weight, int kRows>
void RowBlock(const MatMulArgs& a, uint32_t row) {
  constexpr int kPanels = PanelsFor(kRows);
  uint32_t panel = a.panel_begin;
  for (; panel + kPanels <= a.panel_end; panel += kPanels)
    Block<Weight, kRows, kPanels>(a, row, panel);
  for (; panel < a.panel_end; ++panel) Block<Weight, kRows, 1>(a, row, panel);
}

// Multiplies rows [row, row + rows) with rows <= kRows: starts with the largest block.
template <class Weight, int kRows>
void Rows(const MatMulArgs& a, uint32_t row, uint32_t rows) {
  if (rows == kRows) return RowBlock<Weight, kRows>(a, row);
  if constexpr (kRows > 1) Rows<Weight, kRows - 1>(a, row, rows);
}

// Prefetches the destinations of kMaxRows rows of kPanels panels, which are far apart and not in a
// cache. Prefill of 512, BF16, two cores of a Sapphire Rapids: 165.5 tokens/s without, 167.5 with
// it.
template <int kPanels>
KV_INLINE void PrefetchOutputs(const MatMulArgs& a, uint32_t row, uint32_t panel) {
  for (uint32_t r = row; r < row + kMaxRows; ++r) {
    for (uint32_t p = panel; p < panel + kPanels; ++p) {
      __builtin_prefetch(a.y + r * a.y_stride + p * kPanelOutputs, 1);
    }
  }
}

constexpr uint32_t kSliceColumns = 96;
constexpr uint32_t kMaxWideRows = 48;
static_assert(kMaxWideRows % kMaxRows == 0);

// `rows` rows, a multiple of kMaxRows and at most kMaxWideRows, of kPanels panels whose weights are
// widened slice by slice, once for all rows: widening takes a quarter of a block's time.
template <class Weight, int kPanels>
void WideBlock(const MatMulArgs& a, uint32_t row, uint32_t rows, uint32_t panel) {
  alignas(64) float wide[kPanels][kSliceColumns][kPanelOutputs];
  alignas(64) float sums[kMaxWideRows][kPanels][kPanelOutputs];
  __builtin_memset(sums, 0, sizeof(sums[0]) * rows);
  const size_t panel_bytes = size_t{a.k} * kPanelOutputs * Weight::kBytes;
  for (uint32_t first = 0; first < a.k; first += kSliceColumns) {
    const uint32_t n = a.k - first < kSliceColumns ? a.k - first : kSliceColumns;
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* w =
          a.w + (panel + p) * panel_bytes + size_t{first} * kPanelOutputs * Weight::kBytes;
      for (uint32_t k = 0; k < n; ++k, w += kPanelOutputs * Weight::kBytes) {
        __builtin_prefetch(w + kSliceColumns * kPanelOutputs * Weight::kBytes);
        Store(wide[p][k], Weight::At(w));
      }
    }
    for (uint32_t r = 0; r < rows; r += kMaxRows) {
      if (first + n == a.k) PrefetchOutputs<kPanels>(a, row + r, panel);
      V16 sum[kMaxRows][kPanels];
      KV_UNROLL for (int i = 0; i < kMaxRows; ++i) {
        KV_UNROLL for (int p = 0; p < kPanels; ++p) sum[i][p] = Load(sums[r + i][p]);
      }
      AddColumns<StoredF32, kMaxRows, kPanels, false>(
          a.x + (row + r) * a.x_stride + first, a.x_stride,
          reinterpret_cast<const std::byte*>(wide[0][0]), sizeof(wide[0]), n, sum);
      KV_UNROLL for (int i = 0; i < kMaxRows; ++i) {
        KV_UNROLL for (int p = 0; p < kPanels; ++p) Store(sums[r + i][p], sum[i][p]);
      }
    }
  }
  for (uint32_t r = 0; r < rows; ++r) {
    for (int p = 0; p < kPanels; ++p) StoreSums(a, row + r, panel + p, Load(sums[r][p]));
  }
}

// Multiplies with panels in the outer loop and rows in the inner one, so that a few panels stay in
// the cache for all rows.
template <class Weight>
void MatMulOf(const MatMulArgs& a) {
  constexpr int kPanels = PanelsFor(kMaxRows);
  const uint32_t full = a.rows / kMaxRows * kMaxRows;
  uint32_t panel = full > 0 ? a.panel_begin : a.panel_end;
  for (; panel + kPanels <= a.panel_end; panel += kPanels) {
    if constexpr (Weight::kBytes < 4) {
      for (uint32_t row = 0; full > kMaxRows && row < full; row += kMaxWideRows) {
        const uint32_t rows = full - row < kMaxWideRows ? full - row : kMaxWideRows;
        WideBlock<Weight, kPanels>(a, row, rows, panel);
      }
      if (full > kMaxRows) continue;
    }
    for (uint32_t row = 0; row < full; row += kMaxRows) {
      Block<Weight, kMaxRows, kPanels>(a, row, panel);
    }
  }
  for (; panel < a.panel_end; ++panel) {
    for (uint32_t row = 0; row < full; row += kMaxRows) Block<Weight, kMaxRows, 1>(a, row, panel);
  }
  if (full < a.rows) Rows<Weight, kMaxRows - 1>(a, full, a.rows - full);
}

void MatMul(const MatMulArgs& a) {
  switch (a.format) {
    case WeightFormat::kF32:
      return MatMulOf<StoredF32>(a);
    case WeightFormat::kF16:
      return MatMulOf<StoredF16>(a);
    case WeightFormat::kBf16:
      return MatMulOf<StoredBf16>(a);
    default:
      return;  // quantised formats have another kernel
  }
}

void RmsNorm(const float* x, const float* w, float eps, uint32_t n, float* y, bool other_order) {
  V16 lanes = Zero();
  uint32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const V16 v = Load(x + i);
    lanes = Fma(v, v, lanes);
  }
  if (i < n) {
    const V16 v = LoadFirst(n - i, x + i);
    lanes = SelectLanes(FirstLanes(n - i), Fma(v, v, lanes), lanes);
  }
  float sum = SumTree(lanes);
  if (other_order) {
    sum = 0;
    for (uint32_t j = 0; j < n; ++j) sum = __builtin_fmaf(x[j], x[j], sum);
  }
  const float mean = sum / static_cast<float>(n);
  // When squares overflow, the row becomes NaN and is refused; otherwise it would be scaled to 0.
  const bool finite = mean <= __FLT_MAX__;
  const V16 scale = Set(finite ? 1.0f / __builtin_sqrtf(mean + eps) : __builtin_nanf(""));
  for (i = 0; i < n; i += 16) {
    const uint32_t m = n - i < 16 ? n - i : 16;
    StoreFirst(m, y + i, Mul(Mul(LoadFirst(m, x + i), scale), LoadFirst(m, w + i)));
  }
}

// Returns lanes of f(v) summed by the tree; lanes beyond n are not added to.
template <class Fn>
KV_INLINE float SumOver(uint32_t n, const float* x, Fn add) {
  V16 lanes = Zero();
  uint32_t i = 0;
  for (; i + 16 <= n; i += 16) lanes = add(lanes, Load(x + i));
  if (i < n) lanes = SelectLanes(FirstLanes(n - i), add(lanes, LoadFirst(n - i, x + i)), lanes);
  return SumTree(lanes);
}

void LayerNorm(const float* x, const float* w, const float* b, float eps, uint32_t n, float* y,
               bool other_order) {
  float total = SumOver(n, x, [](V16 sum, V16 v) { return Add(sum, v); });
  if (other_order) {
    total = 0;
    for (uint32_t j = 0; j < n; ++j) total += x[j];
  }
  const float mean = total / static_cast<float>(n);
  const V16 middle = Set(mean);
  const float squares = SumOver(n, x, [middle](V16 sum, V16 v) {
    const V16 d = Sub(v, middle);
    return Fma(d, d, sum);
  });
  const float variance = squares / static_cast<float>(n);
  const bool finite = variance <= __FLT_MAX__;
  const V16 scale = Set(finite ? 1.0f / __builtin_sqrtf(variance + eps) : __builtin_nanf(""));
  for (uint32_t i = 0; i < n; i += 16) {
    const uint32_t m = n - i < 16 ? n - i : 16;
    const V16 d = Mul(Sub(LoadFirst(m, x + i), middle), scale);
    StoreFirst(m, y + i, Fma(d, LoadFirst(m, w + i), LoadFirst(m, b + i)));
  }
}

void AddScaled(float factor, const float* x, uint32_t n, float* y) {
  for (uint32_t i = 0; i < n; i += 16) {
    const uint32_t m = n - i < 16 ? n - i : 16;
    StoreFirst(m, y + i, Fma(Set(factor), LoadFirst(m, x + i), LoadFirst(m, y + i)));
  }
}

void Rope(float* x, uint32_t heads, uint32_t head_dim, uint32_t rotated, const float* cos,
          const float* sin) {
  const uint32_t half = rotated / 2;
  for (uint32_t h = 0; h < heads; ++h, x += head_dim) {
    for (uint32_t i = 0; i < half; i += 16) {
      const uint32_t n = half - i < 16 ? half - i : 16;
      const V16 c = LoadFirst(n, cos + i), s = LoadFirst(n, sin + i);
      const V16 a = LoadFirst(n, x + i), b = LoadFirst(n, x + half + i);
      StoreFirst(n, x + i, Fma(a, c, Mul(Sub(Zero(), b), s)));
      StoreFirst(n, x + half + i, Fma(b, c, Mul(a, s)));
    }
  }
}

// Transforms in Sylvester's order: H(2n) = [H H; H -H].
void Hadamard(float* x, uint32_t heads, uint32_t head_dim) {
  const uint32_t n = HadamardSize(head_dim);
  for (float* end = x + size_t{heads} * head_dim; x < end; x += n) {
    for (uint32_t half = 1; half < n; half *= 2) {
      for (uint32_t from = 0; from < n; from += 2 * half) {
        float* low = x + from;
        float* high = low + half;
        for (uint32_t i = 0; i < half; ++i) {
          const float a = low[i], b = high[i];
          low[i] = a + b;
          high[i] = a - b;
        }
      }
    }
  }
}

struct Silu {
  static KV_INLINE V16 Of(V16 x) { return Div(x, Add(Set(1.0f), Exp(Sub(Zero(), x)))); }
};
struct GeluTanh {
  static KV_INLINE V16 Of(V16 x) {
    const V16 cube = Mul(Mul(x, x), x);
    const V16 inner = Mul(Set(0.79788456080286536f), Fma(Set(0.044715f), cube, x));
    return Mul(Mul(Set(0.5f), x), Add(Set(1.0f), Tanh(inner)));
  }
};
struct Gelu {
  static KV_INLINE V16 Of(V16 x) {
    return Mul(Mul(Set(0.5f), x), Add(Set(1.0f), Erf(Mul(x, Set(0.70710678118654752f)))));
  }
};
struct Relu {
  static KV_INLINE V16 Of(V16 x) { return SelectLess(x, Zero(), Sub(x, x), x); }
};

template <class Act>
void GatedBy(const float* gate, const float* up, uint32_t n, float* y) {
  for (uint32_t i = 0; i < n; i += 16) {
    const uint32_t m = n - i < 16 ? n - i : 16;
    StoreFirst(m, y + i, Mul(Act::Of(LoadFirst(m, gate + i)), LoadFirst(m, up + i)));
  }
}

template <class Act>
void ActivateBy(uint32_t n, float* x) {
  for (uint32_t i = 0; i < n; i += 16) {
    const uint32_t m = n - i < 16 ? n - i : 16;
    StoreFirst(m, x + i, Act::Of(LoadFirst(m, x + i)));
  }
}

void Gated(Activation activation, const float* gate, const float* up, uint32_t n, float* y) {
  switch (activation) {
    case Activation::kSilu:
      return GatedBy<Silu>(gate, up, n, y);
    case Activation::kGeluTanh:
      return GatedBy<GeluTanh>(gate, up, n, y);
    case Activation::kGelu:
      return GatedBy<Gelu>(gate, up, n, y);
    case Activation::kRelu:
      return GatedBy<Relu>(gate, up, n, y);
  }
}

void Activate(Activation activation, uint32_t n, float* x) {
  switch (activation) {
    case Activation::kSilu:
      return ActivateBy<Silu>(n, x);
    case Activation::kGeluTanh:
      return ActivateBy<GeluTanh>(n, x);
    case Activation::kGelu:
      return ActivateBy<Gelu>(n, x);
    case Activation::kRelu:
      return ActivateBy<Relu>(n, x);
  }
}

void SoftCap(float cap, uint32_t n, float* x) {
  for (uint32_t i = 0; i < n; i += 16) {
    const uint32_t m = n - i < 16 ? n - i : 16;
    const V16 v = LoadFirst(m, x + i);
    StoreFirst(m, x + i, Add(Mul(Set(cap), Tanh(Div(v, Set(cap)))), Sub(v, v)));
  }
}

void Widen(const std::byte* src, WeightFormat format, uint32_t n, float* dst) {
  for (uint32_t i = 0; i < n; ++i) {  // a file's bytes may be unaligned
    if (format == WeightFormat::kF32) {
      __builtin_memcpy(dst + i, src + size_t{i} * 4, 4);
    } else {
      uint16_t h;
      __builtin_memcpy(&h, src + size_t{i} * 2, 2);
      dst[i] = format == WeightFormat::kF16 ? FromF16(h) : FromBf16(h);
    }
  }
}

bool AllFinite(const float* x, uint32_t n) {
  uint32_t bad = 0;
  for (uint32_t i = 0; i < n; ++i) bad |= (BitsOf(x[i]) & 0x7f800000u) == 0x7f800000u;
  return bad == 0;
}

}  // namespace

const TensorKernels kTensorKernels = {MatMul, RmsNorm,  LayerNorm, AddScaled, Rope,     Hadamard,
                                      Gated,  Activate, SoftCap,   Widen,     AllFinite};

}  // namespace kvasir::KVASIR_TARGET_NS
