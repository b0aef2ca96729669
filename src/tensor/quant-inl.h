// The lanes of tensor/quant.h, compiled once per target. A lane sums one output; the integers of a
// group are exact, so their order does not matter, and groups are added in order by FMA.
#pragma once

#include "tensor/quant.h"
#include "tensor/quant_ops-inl.h"
#include "tensor/store_sums-inl.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

using MatMulArgs = QuantKernels::MatMulArgs;

// VNNI multiplies unsigned codes, so the sign bit of signed codes is flipped: they are 128 too
// large.
constexpr bool kFlipSigned = KVASIR_VNNI && KVASIR_TARGET_ID != 3;

// A weight format as constants.
template <WeightFormat kStoredFormat>
struct Stored {
  static constexpr WeightFormat kFormat = kStoredFormat;
  static constexpr WeightLayout kLayout = LayoutOf(kStoredFormat);
  // Sums of a group with separate scales.
  static constexpr int kSums = kLayout.scale == ScaleKind::kSuperHalf ? 2 : 1;
  static constexpr bool kSigned = kLayout.code_bits == 8 || kLayout.table;
  // Steps (two products of a code and an activation each) that int16 holds.
  static constexpr int kChain = kSigned                  ? 1
                                : kLayout.code_bits == 4 ? 8
                                : kLayout.code_bits == 5 ? 4
                                                         : 2;
  static constexpr uint32_t kGroupBytes = kLayout.group_code_bytes();
  static constexpr uint32_t kGroups = kLayout.groups();

  // Returns the quad q of a group's eight: unsigned codes, or signed ones.
  template <int q>
  static KV_INLINE Bytes Quad(const std::byte* codes) {
    constexpr int i = q % 4;
    constexpr bool kHigh = q >= 4;  // the upper four bits of quad i's bytes
    if constexpr (kLayout.code_bits == 8) return LoadBytes(codes + q * 64);
    Bytes v = ShiftMask<(kHigh ? -4 : 0)>(LoadBytes(codes + i * 64), 0x0f);
    if constexpr (kLayout.table) v = LookUp(kIq4NlLevels, v);
    if constexpr (kLayout.code_bits == 5) {
      v = Or(v, ShiftMask<(kHigh ? 0 : 4) - i>(LoadBytes(codes + 256), 0x10));
    } else if constexpr (kLayout.code_bits == 6) {
      v = Or(v, ShiftMask<4 - 2 * i>(LoadBytes(codes + (kHigh ? 320 : 256)), 0x30));
    }
    return v;
  }
};

// Codes of a group, packed, as Dot or MulShorts takes them.
template <class S>
struct PackedCodes {
  const std::byte* codes;
  template <int q>
  KV_INLINE Bytes Quad() const {
    const Bytes v = S::template Quad<q>(codes);
    if constexpr (S::kSigned && kFlipSigned) return FlipSign(v);
    return v;
  }
};

// Codes that were unpacked before: [8 quads][16 outputs][4].
struct ReadyCodes {
  const std::byte* codes;
  template <int q>
  KV_INLINE Bytes Quad() const {
    return LoadBytes(codes + q * 64);
  }
};

// Dot products of a group of kRows x kPanels: sum[r][p][h] of the group's half h, or of all of it.
template <class S, int kRows, int kPanels>
struct GroupDots {
  Ints sum[kRows][kPanels][S::kSums];
#if !KVASIR_VNNI
  Shorts chain[kRows][kPanels][S::kSums];
#endif

  KV_INLINE GroupDots(const std::byte* const* rows, uint64_t offsets_at, uint64_t group) {
    KV_UNROLL for (int r = 0; r < kRows; ++r) {
      const auto* offsets = reinterpret_cast<const int32_t*>(rows[r] + offsets_at) + group * 2;
      KV_UNROLL for (int p = 0; p < kPanels; ++p) {
        KV_UNROLL for (int h = 0; h < S::kSums; ++h) sum[r][p][h] = SetInts(offsets + h);
      }
    }
  }

  template <class Codes>
  KV_INLINE void Add(const Codes* codes, const std::byte* const* rows, uint64_t group) {
    const uint64_t column = group * kGroup;  // halves in turn: the sums of Q6_K are apart
    Multiply<0, 0>(codes, rows, column);
    Multiply<1, 4>(codes, rows, column);
    Multiply<2, 1>(codes, rows, column);
    Multiply<3, 5>(codes, rows, column);
    Multiply<4, 2>(codes, rows, column);
    Multiply<5, 6>(codes, rows, column);
    Multiply<6, 3>(codes, rows, column);
    Multiply<7, 7>(codes, rows, column);
  }

 private:
  // Returns the step-th of a group's eight products: quad q.
  template <int kStep, int q, class Codes>
  KV_INLINE void Multiply(const Codes* codes, const std::byte* const* rows, uint64_t column) {
    KV_UNROLL for (int p = 0; p < kPanels; ++p) {
      Multiply<kStep>(p, q < 4 ? 0 : S::kSums - 1, codes[p].template Quad<q>(), rows,
                      column + q * 4);
    }
  }

  template <int kStep>
  KV_INLINE void Multiply(int p, int h, Bytes codes, const std::byte* const* rows,
                          uint64_t column) {
#if KVASIR_VNNI
    KV_UNROLL for (int r = 0; r < kRows; ++r) {
      const Quad a = LoadQuad(reinterpret_cast<const int8_t*>(rows[r]) + column);
      sum[r][p][h] = Dot(sum[r][p][h], codes, a);
    }
#else
    [[maybe_unused]] const Bytes size = S::kSigned ? AbsBytes(codes) : codes;
    constexpr int kIndex = kStep / S::kSums;  // of this half's products
    KV_UNROLL for (int r = 0; r < kRows; ++r) {
      const Quad a = LoadQuad(reinterpret_cast<const int8_t*>(rows[r]) + column);
      Shorts& s = chain[r][p][h];
      if constexpr (S::kSigned) {
        s = MulShorts(size, WithSign(a, codes));
      } else if constexpr (kIndex % S::kChain == 0) {
        s = MulShorts(codes, a);
      } else {
        s = AddShorts(s, MulShorts(codes, a));
      }
      if constexpr (kIndex % S::kChain == S::kChain - 1) {
        sum[r][p][h] = AddPairs(sum[r][p][h], s);
      }
    }
#endif
  }
};

// Scales and minimum of a group of 16 outputs.
template <class S>
struct Scales {
  V16 scale[S::kSums];
  V16 minimum;
  Scales() = default;
  // unit: the unit's first byte; g: the group in it.
  KV_INLINE Scales(const std::byte* unit, uint32_t g) {
    constexpr WeightLayout kLayout = S::kLayout;
    if constexpr (kLayout.scale == ScaleKind::kGroup) {
      scale[0] = StoredF16::At(unit + g * 32);
      if constexpr (kLayout.minimum) {
        minimum = StoredF16::At(unit + kLayout.minimums_offset() + g * 32);
      }
      return;
    }
    const V16 d = StoredF16::At(unit);
    const std::byte* sub = unit + kLayout.sub_scales_offset() + g * 32;
    if constexpr (kLayout.scale == ScaleKind::kSuper) {
      scale[0] = Mul(d, LoadU8(sub));
      minimum = Sub(Zero(), Mul(StoredF16::At(unit + 32), LoadU8(sub + 16)));
    } else {
      KV_UNROLL for (int h = 0; h < S::kSums; ++h) scale[h] = Mul(d, LoadI8(sub + h * 16));
    }
  }
};

KV_INLINE float RowScale(const std::byte* row, uint64_t at, uint64_t group) {
  return reinterpret_cast<const float*>(row + at)[group];
}

// Prefetches: with few rows memory is the limit, and hardware prefetching hardly works on some
// machines. So this prefetches a later unit in parts, group by group: first into L2, then into L1.
// Measured on two cores of a Sapphire Rapids, Q4_0: 96% of the bandwidth of plain reading, against
// 75% when it prefetches only codes, at one distance.
template <class S>
KV_INLINE void PrefetchAhead(const std::byte* unit, uint32_t g) {
  constexpr uint32_t kLines = (S::kLayout.unit_bytes() / 64 + S::kGroups - 1) / S::kGroups;
  const std::byte* part = unit + size_t{g} * kLines * 64;
  for (uint32_t i = 0; i < kLines; ++i) {
    __builtin_prefetch(part + 1024 + i * 64, 0, 3);
    __builtin_prefetch(part + 4096 + i * 64, 0, 2);
  }
}

// Adds a group's dot products to the sums.
template <class S, int kRows, int kPanels>
KV_INLINE void Join(const GroupDots<S, kRows, kPanels>& dots, int p, const Scales<S>& w,
                    const std::byte* const* rows, const ActivationLayout& layout, uint64_t group,
                    V16 (*sum)[kPanels]) {
  KV_UNROLL for (int r = 0; r < kRows; ++r) {
    const V16 da = Set(RowScale(rows[r], layout.scales_at(), group));
    KV_UNROLL for (int h = 0; h < S::kSums; ++h) {
      sum[r][p] = Fma(ToFloats(dots.sum[r][p][h]), Mul(w.scale[h], da), sum[r][p]);
    }
    if constexpr (S::kLayout.minimum) {
      const V16 total = Set(RowScale(rows[r], layout.scaled_sums_at(), group));
      sum[r][p] = Fma(w.minimum, total, sum[r][p]);
    }
  }
}

// Multiplies rows [row, row + kRows) of one panel, directly from the packed weights. Repeats the
// last row for rows beyond it.
template <class S, int kRows>
void MultiplyPacked(const MatMulArgs& a, uint32_t row, uint32_t panel) {
  const ActivationLayout layout(a.k);
  const std::byte* rows[kRows];
  for (uint32_t r = 0; r < kRows; ++r) {
    rows[r] = a.x + (row + r < a.rows ? row + r : a.rows - 1) * a.x_stride;
  }
  const std::byte* unit = a.w + panel * PanelBytes(S::kFormat, a.k);
  V16 sum[kRows][1];
  KV_UNROLL for (int r = 0; r < kRows; ++r) sum[r][0] = Zero();
  const uint32_t groups = (a.k + kGroup - 1) / kGroup;
  for (uint32_t first = 0; first < groups; first += S::kGroups, unit += S::kLayout.unit_bytes()) {
    const uint32_t count = groups - first < S::kGroups ? groups - first : S::kGroups;
    for (uint32_t g = 0; g < count; ++g) {
      if (row == 0) PrefetchAhead<S>(unit, g);  // later rows find the weights in the cache
      const PackedCodes<S> codes{unit + S::kLayout.codes_offset() + g * S::kGroupBytes};
      GroupDots<S, kRows, 1> dots(rows, layout.offsets_at(), first + g);
      dots.Add(&codes, rows, first + g);
      Join<S, kRows, 1>(dots, 0, Scales<S>(unit, g), rows, layout, first + g, sum);
    }
  }
  KV_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
    if (row + r < a.rows) StoreSums(a, row + r, panel, sum[r][0]);
  }
}

// Kernel<S>::Run(a) for the format of a.
template <template <class> class Kernel>
void ForFormat(const MatMulArgs& a) {
  switch (a.format) {
    case WeightFormat::kI8:
      return Kernel<Stored<WeightFormat::kI8>>::Run(a);
    case WeightFormat::kQ8_0:
      return Kernel<Stored<WeightFormat::kQ8_0>>::Run(a);
    case WeightFormat::kQ4_0:
      return Kernel<Stored<WeightFormat::kQ4_0>>::Run(a);
    case WeightFormat::kQ4_1:
      return Kernel<Stored<WeightFormat::kQ4_1>>::Run(a);
    case WeightFormat::kQ5_0:
      return Kernel<Stored<WeightFormat::kQ5_0>>::Run(a);
    case WeightFormat::kQ5_1:
      return Kernel<Stored<WeightFormat::kQ5_1>>::Run(a);
    case WeightFormat::kQ4K:
      return Kernel<Stored<WeightFormat::kQ4K>>::Run(a);
    case WeightFormat::kQ5K:
      return Kernel<Stored<WeightFormat::kQ5K>>::Run(a);
    case WeightFormat::kQ6K:
      return Kernel<Stored<WeightFormat::kQ6K>>::Run(a);
    case WeightFormat::kIq4Nl:
      return Kernel<Stored<WeightFormat::kIq4Nl>>::Run(a);
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      return;  // tensor/kernels.h
  }
}

// Returns by how much the codes in a dot product are too large.
int32_t ExcessOf(WeightFormat format) {
  const WeightLayout layout = LayoutOf(format);
  if (layout.code_bits == 8 || layout.table) return kFlipSigned ? 128 : 0;
  return layout.zero;
}

// A group of activations: columns [at, at + kGroup) of x[k], rounded.
struct RoundedGroup {
  V16 q[2];  // integers from -127 to 127
  float scale;

  KV_INLINE RoundedGroup(const float* x, uint32_t k, uint32_t at) {
    const uint32_t left = at < k ? k - at : 0;
    const V16 a = LoadFirst(left < 16 ? left : 16, x + at);
    const V16 b = LoadFirst(left < 16 ? 0 : left < 32 ? left - 16 : 16, x + at + 16);
    const float amax = MagnitudeLane(MaxMagnitude(a, b));
    if (amax >= 0x1p-100f && amax < __builtin_inff()) {
      const V16 inverse = Set(127.0f / amax);
      q[0] = RoundEven(Mul(a, inverse));
      q[1] = RoundEven(Mul(b, inverse));
      scale = amax / 127.0f;
    } else {
      q[0] = q[1] = Zero();
      scale = amax < 0x1p-100f ? 0.0f : __builtin_nanf("");
    }
  }
  KV_INLINE float Sum() const { return SumTree(Add(q[0], q[1])); }  // exact, as is that of a half
};

void QuantiseRow(const float* x, uint32_t k, WeightFormat format, std::byte* row) {
  const ActivationLayout layout(k);
  auto* q = reinterpret_cast<int8_t*>(row);
  auto* scales = reinterpret_cast<float*>(row + layout.scales_at());
  auto* scaled_sums = reinterpret_cast<float*>(row + layout.scaled_sums_at());
  auto* offsets = reinterpret_cast<int32_t*>(row + layout.offsets_at());
  const int32_t excess = ExcessOf(format);
  const bool halves = LayoutOf(format).scale == ScaleKind::kSuperHalf;
  for (uint64_t g = 0; g < layout.groups; ++g) {
    const uint32_t at = static_cast<uint32_t>(g) * kGroup;
    const RoundedGroup rounded(x, k, at);
    StoreI8(q + at, rounded.q[0]);
    StoreI8(q + at + 16, rounded.q[1]);
    const float sum = rounded.Sum(), second = halves ? SumTree(rounded.q[1]) : 0.0f;
    scales[g] = rounded.scale;
    scaled_sums[g] = rounded.scale * sum;
    offsets[g * 2] = -excess * static_cast<int32_t>(sum - second);
    offsets[g * 2 + 1] = -excess * static_cast<int32_t>(second);
  }
}

using QuantiseArgs = QuantKernels::QuantiseArgs;

void QuantiseRows(const QuantiseArgs& a) {
  const uint64_t stride = ActivationLayout(a.k).bytes();
  for (uint32_t r = 0; r < a.rows; ++r) {
    QuantiseRow(a.x + r * a.x_stride, a.k, a.format, a.out + r * stride);
  }
}

}  // namespace
}  // namespace kvasir::KVASIR_TARGET_NS
