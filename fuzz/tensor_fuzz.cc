// Tensor kernels of every target that this CPU has, on shapes, formats and numbers from the input:
// each must give the bits of the scalar ones and write only its outputs.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/check.h"
#include "byte_source.h"
#include "fuzz_target.h"
#include "number_source.h"
#include "simd/target.h"
#include "tensor/kernels.h"
#include "tensor/quant.h"

namespace kvasir {
namespace {

using Floats = ExactBuffer<float>;

constexpr WeightFormat kFloatFormats[] = {WeightFormat::kF32, WeightFormat::kF16,
                                          WeightFormat::kBf16};
constexpr WeightFormat kQuantFormats[] = {
    WeightFormat::kI8,   WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1,
    WeightFormat::kQ5_0, WeightFormat::kQ5_1, WeightFormat::kQ4K,  WeightFormat::kQ5K,
    WeightFormat::kQ6K,  WeightFormat::kIq4Nl};

// Kernels to compare with the scalar ones, and their name for failures.
template <typename Kernels>
struct Unit {
  std::string_view name;
  const Kernels* kernels;
};
std::vector<Unit<TensorKernels>> TensorUnits() {
  std::vector<Unit<TensorKernels>> units;
  for (const Target target : SupportedTargets()) {
    if (target == FloatTarget(target)) units.push_back({NameOf(target), &TensorKernelsFor(target)});
  }
  return units;
}
std::vector<Unit<QuantKernels>> QuantUnits() {
  std::vector<Unit<QuantKernels>> units;
  for (const Target target : SupportedTargets()) {
    units.push_back({NameOf(target), &QuantKernelsFor(target)});
  }
  units.push_back({"amxsoft", &amxsoft::kQuantKernels});
  return units;
}

void CheckSame(std::span<const float> got, std::span<const float> expected, std::string_view unit,
               const char* kernel) {
  if (SameNumbers(got, expected)) return;
  size_t i = 0;
  while (SameNumbers(got.subspan(i, 1), expected.subspan(i, 1))) ++i;
  std::fprintf(stderr, "%.*s %s: [%zu] is %a (%08x), scalar has %a (%08x)\n",
               static_cast<int>(unit.size()), unit.data(), kernel, i, double{got[i]},
               BitsOf(got[i]), double{expected[i]}, BitsOf(expected[i]));
  KV_CHECK(false);
}

// Runs kernel(kernels, y) of all units on outputs that start as `initial`.
template <typename Kernels, typename Kernel>
void Compare(const std::vector<Unit<Kernels>>& units, const Floats& initial, const char* name,
             const Kernel& kernel) {
  Floats expected(initial.size());
  for (const auto& unit : units) {
    Floats y(initial.size());
    std::ranges::copy(initial.span(), y.data());
    kernel(*unit.kernels, y.data());
    if (&unit == &units.front()) std::ranges::copy(y.span(), expected.data());
    CheckSame(y.span(), expected.span(), unit.name, name);
  }
}

Floats SomeFloats(NumberSource& numbers, size_t count) {
  Floats x(count);
  for (size_t i = 0; i < count; ++i) x[i] = numbers.Next();
  return x;
}

// The inputs and outputs of a product, without its weights.
struct Product {
  Product(ByteSource& bytes, uint32_t max_rows, uint32_t columns)
      : rows(bytes.Between(1, bytes.Below(4) == 0 ? max_rows : 9)),
        k(columns),
        outputs(bytes.Between(1, 100)),
        panels((outputs + 15) / 16),
        panel_begin(bytes.Below(panels + 1)),
        panel_end(bytes.Between(panel_begin, panels)),
        x_stride(k + bytes.Below(4)),
        y_stride(outputs + bytes.Below(4)),
        has_bias(bytes.Below(2) == 1),
        accumulate(bytes.Below(2) == 1) {}
  uint32_t rows, k, outputs, panels, panel_begin, panel_end;
  size_t x_stride, y_stride;
  bool has_bias, accumulate;

  // Returns rows `stride` floats apart, with NaN between them and nothing after the last one.
  Floats Rows(NumberSource& numbers, uint32_t width, size_t stride) const {
    Floats x((rows - 1) * stride + width);
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t i = 0; i < width; ++i) x[r * stride + i] = numbers.Next();
    }
    return x;
  }
};

void FuzzMatMul(ByteSource& bytes) {
  const Product p(bytes, 120, bytes.Between(1, bytes.Below(4) == 0 ? 300 : 40));
  const WeightFormat format = kFloatFormats[bytes.Below(3)];
  NumberSource numbers(bytes);
  ExactBuffer<std::byte> w(p.panels * PanelBytes(format, p.k));
  for (size_t at = 0; at < w.size(); at += BytesOf(format)) {
    const float x = numbers.NextFinite();
    const uint16_t half = format == WeightFormat::kF16 ? ToF16(x) : ToBf16(x);
    std::memcpy(w.data() + at, BytesOf(format) == 4 ? static_cast<const void*>(&x) : &half,
                BytesOf(format));
  }
  const Floats x = p.Rows(numbers, p.k, p.x_stride), bias = SomeFloats(numbers, p.outputs);
  const Floats y = p.Rows(numbers, p.outputs, p.y_stride);
  Compare(TensorUnits(), y, "mat_mul", [&](const TensorKernels& kernels, float* out) {
    kernels.mat_mul({x.data(), p.x_stride, w.data(), format, p.has_bias ? bias.data() : nullptr,
                     out, p.y_stride, p.rows, p.k, p.outputs, p.panel_begin, p.panel_end,
                     p.accumulate});
  });
}

// Returns one group as a file may hold it: any codes, and scales that are finite (loading refuses
// others).
WeightGroup SomeGroup(NumberSource& numbers, WeightFormat format) {
  const WeightLayout layout = LayoutOf(format);
  Random& random = numbers.random();
  const bool ends = random.Below(4) == 0;  // only the largest and smallest codes
  WeightGroup group{};
  for (uint8_t& code : group.codes) {
    const uint32_t top = (1u << layout.code_bits) - 1;
    const uint32_t any = static_cast<uint32_t>(random.Bits()) & top;
    const uint32_t choices[] = {0, top, top / 2, top / 2 + 1};
    code = static_cast<uint8_t>(ends ? choices[any % 4] : any);
  }
  group.d = ToF16(numbers.NextFinite());
  if (layout.minimum) group.dmin = ToF16(numbers.NextFinite());
  if (layout.scale == ScaleKind::kGroup) return group;
  const bool halves = layout.scale == ScaleKind::kSuperHalf;
  for (uint8_t& scale : group.sub_scale) {
    scale = static_cast<uint8_t>(random.Below(halves ? 256 : 64));
  }
  group.sub_minimum = static_cast<uint8_t>(random.Below(64));
  return group;
}

ExactBuffer<std::byte> SomePanels(NumberSource& numbers, WeightFormat format, uint32_t outputs,
                                  uint32_t k) {
  const uint64_t panel_bytes = PanelBytes(format, k);
  ExactBuffer<std::byte> panels((outputs + 15) / 16 *
                                panel_bytes);  // 0xff where nothing is written
  const uint32_t groups = (k + kGroup - 1) / kGroup, of_unit = LayoutOf(format).groups();
  const bool own_scales = LayoutOf(format).scale == ScaleKind::kGroup;
  for (uint32_t o = 0; o < outputs; ++o) {
    WeightGroup unit{};
    for (uint32_t g = 0; g < groups; ++g) {
      WeightGroup group = SomeGroup(numbers, format);
      if (g % of_unit == 0) unit = group;
      if (!own_scales) group.d = unit.d, group.dmin = unit.dmin;
      const uint32_t columns = std::min(k - g * kGroup, kGroup);
      std::fill(group.codes + columns, group.codes + kGroup, 0);
      PutGroup(format, panels.data() + o / 16 * panel_bytes, o % 16, g, group);
    }
  }
  return panels;
}

void FuzzQuantMatMul(ByteSource& bytes) {
  const WeightFormat format = kQuantFormats[bytes.Below(std::size(kQuantFormats))];
  const bool super = LayoutOf(format).unit_k() == 256;
  const Product p(bytes, 210, super ? 256 * bytes.Between(1, 3) : bytes.Between(1, 640));
  NumberSource numbers(bytes);
  const auto w = SomePanels(numbers, format, p.outputs, p.k);
  const Floats x = p.Rows(numbers, p.k, p.x_stride), bias = SomeFloats(numbers, p.outputs);
  const Floats y = p.Rows(numbers, p.outputs, p.y_stride);
  const size_t row_bytes = ActivationLayout(p.k).bytes();
  Compare(QuantUnits(), y, "quantised mat_mul", [&](const QuantKernels& kernels, float* out) {
    ExactBuffer<std::byte> quantised(row_bytes * p.rows);
    for (uint32_t r = 0; r < p.rows; r += kBlockRows) {
      kernels.quantise({x.data() + r * p.x_stride, p.x_stride, std::min(p.rows - r, kBlockRows),
                        p.k, format, quantised.data() + r * row_bytes});
    }
    kernels.mat_mul({quantised.data(), row_bytes, w.data(), format,
                     p.has_bias ? bias.data() : nullptr, out, p.y_stride, p.rows, p.k, p.outputs,
                     p.panel_begin, p.panel_end, p.accumulate});
  });
}

void FuzzRows(ByteSource& bytes) {
  const uint32_t kernel = bytes.Below(8), n = bytes.Between(1, bytes.Below(4) == 0 ? 600 : 70);
  const WeightFormat format = kFloatFormats[bytes.Below(3)];
  NumberSource numbers(bytes);
  const Floats x = SomeFloats(numbers, n), w = SomeFloats(numbers, n), y = SomeFloats(numbers, n);
  const float eps = numbers.random().Below(2) == 0 ? 1e-5f : 0.0f;
  const Activation act = kAllActivations[numbers.random().Below(std::size(kAllActivations))];
  const auto units = TensorUnits();
  switch (kernel) {
    case 0:
      return Compare(units, y, "rms_norm", [&](const TensorKernels& k, float* out) {
        k.rms_norm(x.data(), w.data(), eps, n, out, false);
      });
    case 1:
      return Compare(units, y, "gated", [&](const TensorKernels& k, float* out) {
        k.gated(act, x.data(), w.data(), n, out);
      });
    case 2:
      return Compare(units, x, "gated in place", [&](const TensorKernels& k, float* out) {
        k.gated(act, out, w.data(), n, out);
      });
    case 3: {
      const size_t unaligned = numbers.random().Below(4);
      ExactBuffer<std::byte> stored(unaligned + size_t{n} * BytesOf(format));
      std::memcpy(stored.data() + unaligned, x.data(), size_t{n} * BytesOf(format));
      return Compare(units, y, "widen", [&](const TensorKernels& k, float* out) {
        k.widen(stored.data() + unaligned, format, n, out);
      });
    }
    case 5:
      return Compare(units, x, "activate",
                     [&](const TensorKernels& k, float* out) { k.activate(act, n, out); });
    case 6:
      return Compare(units, y, "layer_norm", [&](const TensorKernels& k, float* out) {
        k.layer_norm(x.data(), w.data(), w.data(), eps, n, out, false);
      });
    case 7:
      return Compare(units, y, "add_scaled", [&](const TensorKernels& k, float* out) {
        k.add_scaled(w[0], x.data(), n, out);
      });
    default: {
      const bool finite = std::ranges::all_of(x.span(), [](float v) { return std::isfinite(v); });
      for (const auto& unit : units) KV_CHECK(unit.kernels->all_finite(x.data(), n) == finite);
    }
  }
}

void FuzzHeads(ByteSource& bytes) {
  const bool rope = bytes.Below(2) == 0;
  const uint32_t heads = bytes.Between(1, 5), head_dim = 2 * bytes.Between(1, 130);
  NumberSource numbers(bytes);
  const Floats x = SomeFloats(numbers, size_t{heads} * head_dim);
  if (!rope) {
    return Compare(TensorUnits(), x, "hadamard",
                   [&](const TensorKernels& k, float* out) { k.hadamard(out, heads, head_dim); });
  }
  const uint32_t rotated = 2 * static_cast<uint32_t>(numbers.random().Below(head_dim / 2 + 1));
  const Floats cos = SomeFloats(numbers, rotated / 2), sin = SomeFloats(numbers, rotated / 2);
  Compare(TensorUnits(), x, "rope", [&](const TensorKernels& k, float* out) {
    k.rope(out, heads, head_dim, rotated, cos.data(), sin.data());
  });
}

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(tensor)(const uint8_t* data, size_t size) {
  const kvasir::ComputeScope environment;
  kvasir::ByteSource bytes(data, size);
  switch (bytes.Below(4)) {
    case 0:
      kvasir::FuzzMatMul(bytes);
      break;
    case 1:
      kvasir::FuzzQuantMatMul(bytes);
      break;
    case 2:
      kvasir::FuzzRows(bytes);
      break;
    default:
      kvasir::FuzzHeads(bytes);
  }
  return 0;
}
