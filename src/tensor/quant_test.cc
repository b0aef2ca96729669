#include "tensor/quant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "simd/half.h"
#include "tensor/reference.h"
#include "tensor/same_bits_for_test.h"

namespace kvasir {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kI8,   WeightFormat::kQ8_0, WeightFormat::kQ4_0,
                                     WeightFormat::kQ4_1, WeightFormat::kQ5_0, WeightFormat::kQ5_1,
                                     WeightFormat::kQ4K,  WeightFormat::kQ5K,  WeightFormat::kQ6K,
                                     WeightFormat::kIq4Nl};

struct FreeAligned {
  void operator()(std::byte* p) const { std::free(p); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeAligned>;
AlignedBytes Allocate(size_t bytes, int fill) {
  bytes = (bytes + 63) / 64 * 64;
  AlignedBytes p(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
  std::memset(p.get(), fill, bytes);
  return p;
}

enum class Numbers { kOrdinary, kWide, kExtreme };

// Draws a number with an exponent within +-12, so that another order of a sum gives other bits.
float Wide(Random& random) {
  const float x = static_cast<float>(random.Uniform() * 2 - 1);
  return std::ldexp(x, static_cast<int>(random.Below(25)) - 12);
}

WeightGroup RandomGroup(Random& random, WeightFormat format, Numbers numbers) {
  const WeightLayout layout = LayoutOf(format);
  WeightGroup g{};
  for (uint8_t& code : g.codes) {
    const uint32_t bits = layout.code_bits;
    code = static_cast<uint8_t>(random.Below(uint64_t{1} << bits));
    if (numbers == Numbers::kExtreme) {
      const uint8_t top = static_cast<uint8_t>((1u << bits) - 1);
      const uint8_t choices[4] = {0, top, static_cast<uint8_t>(1u << (bits - 1)),
                                  static_cast<uint8_t>((1u << (bits - 1)) - 1)};
      code = choices[random.Below(4)];
    }
  }
  const auto scale = [&] {
    if (numbers == Numbers::kExtreme && random.Below(4) == 0) {
      return static_cast<uint16_t>(1 + random.Below(0x3ff));  // subnormal
    }
    return ToF16(numbers == Numbers::kWide ? Wide(random) : static_cast<float>(random.Uniform()));
  };
  g.d = scale();
  if (layout.minimum) g.dmin = scale();
  if (layout.scale == ScaleKind::kGroup) return g;
  const bool halves = layout.scale == ScaleKind::kSuperHalf;
  g.sub_scale[0] = static_cast<uint8_t>(random.Below(halves ? 256 : 64));
  if (halves) g.sub_scale[1] = static_cast<uint8_t>(random.Below(256));
  if (layout.minimum) g.sub_minimum = static_cast<uint8_t>(random.Below(64));
  return g;
}

// A random matrix, as groups and packed.
struct Matrix {
  Matrix(Random& random, WeightFormat f, uint32_t n, uint32_t columns, Numbers numbers, int poison)
      : format(f), outputs(n), k(columns) {
    const WeightLayout layout = LayoutOf(format);
    const uint32_t count = (k + kGroup - 1) / kGroup, panels = (outputs + 15) / 16;
    const uint64_t panel_bytes = PanelBytes(format, k);
    packed = Allocate(panel_bytes * panels, poison);
    for (uint32_t o = 0; o < outputs; ++o) {
      for (uint32_t i = 0; i < count; ++i) {
        WeightGroup g = RandomGroup(random, format, numbers);
        if (layout.scale != ScaleKind::kGroup && i % 8 != 0) {  // one d for a unit
          g.d = groups.back().d;
          g.dmin = groups.back().dmin;
        }
        if (k % kGroup != 0 && i + 1 == count) {
          for (uint32_t j = k % kGroup; j < kGroup; ++j) g.codes[j] = 0;
        }
        PutGroup(format, packed.get() + o / 16 * panel_bytes, o % 16, i, g);
        groups.push_back(g);
      }
    }
  }
  WeightFormat format;
  uint32_t outputs, k;
  std::vector<WeightGroup> groups;
  AlignedBytes packed;
};

std::vector<float> Activations(Random& random, size_t count, Numbers numbers) {
  std::vector<float> x(count);
  for (float& v : x) {
    v = numbers == Numbers::kOrdinary ? static_cast<float>(random.Uniform() * 2 - 1) : Wide(random);
    if (numbers == Numbers::kExtreme) {
      const float choices[5] = {v, std::ldexp(v, -110), std::ldexp(v, 90), 0.0f, 1e-42f};
      v = choices[random.Below(5)];
    }
  }
  return x;
}

// Multiplies in two calls: the panels before `split`, and the rest. `padding`: floats after each
// row of x and y, which must not matter or change; with padding, products are added to y, which
// is 7.
std::vector<float> Multiply(const QuantKernels& kernels, const Matrix& w,
                            const std::vector<float>& x, const std::vector<float>& bias,
                            uint32_t rows, uint32_t split = 0, uint32_t padding = 0) {
  const size_t row_bytes = ActivationLayout(w.k).bytes();
  const AlignedBytes quantised = Allocate(row_bytes * rows, 0xff);
  const size_t x_stride = w.k + padding, y_stride = w.outputs + padding;
  std::vector<float> padded(rows * x_stride, NAN), y(rows * y_stride, 7.0f);
  for (uint32_t r = 0; r < rows; ++r) {
    std::copy_n(&x[size_t{r} * w.k], w.k, &padded[r * x_stride]);
  }
  for (uint32_t r = 0; r < rows; r += kBlockRows) {
    kernels.quantise({&padded[r * x_stride], x_stride, std::min(rows - r, kBlockRows), w.k,
                      w.format, quantised.get() + r * row_bytes});
  }
  const uint32_t panels = (w.outputs + 15) / 16;
  for (const auto& [begin, end] : {std::pair(0u, split), std::pair(split, panels)}) {
    kernels.mat_mul({quantised.get(), row_bytes, w.packed.get(), w.format,
                     bias.empty() ? nullptr : bias.data(), y.data(), y_stride, rows, w.k, w.outputs,
                     begin, end, padding != 0});
  }
  std::vector<float> out;
  for (uint32_t r = 0; r < rows; ++r) {
    const auto row = y.begin() + r * y_stride, end = row + w.outputs;
    out.insert(out.end(), row, end);
    EXPECT_TRUE(std::all_of(end, row + y_stride, [](float v) { return v == 7.0f; }));
  }
  return out;
}

struct Unit {
  std::string name;
  const QuantKernels* kernels;
};
std::vector<Unit> Units() {
  std::vector<Unit> units{{"amxsoft", &amxsoft::kQuantKernels}};
  for (Target target : SupportedTargets()) {
    units.push_back({std::string(NameOf(target)), &QuantKernelsFor(target)});
  }
  return units;
}

class QuantTargets : public testing::TestWithParam<Unit> {
 protected:
  const QuantKernels& kernels_ = *GetParam().kernels;
};

uint32_t RandomColumns(Random& random, WeightFormat format) {
  if (LayoutOf(format).scale != ScaleKind::kGroup) return 256 * (1 + random.Below(18));
  return 1 + static_cast<uint32_t>(random.Below(random.Below(4) == 0 ? 4500 : 1100));
}

TEST_P(QuantTargets, HasTheReferencesBitsInEveryShapeAndFormat) {
  Random random(11);
  for (WeightFormat format : kFormats) {
    for (uint32_t rows : {1u, 2u, 3u, 4u, 6u, 7u, 8u, 9u, 16u, 17u, 50u, 129u}) {
      for (uint32_t outputs : {1u, 15u, 16u, 50u}) {
        const auto numbers = static_cast<Numbers>(random.Below(3));
        const uint32_t k = RandomColumns(random, format);
        const Matrix w(random, format, outputs, k, numbers, 0);
        const auto x = Activations(random, size_t{rows} * k, numbers);
        const auto bias = random.Below(2) ? Activations(random, outputs, Numbers::kOrdinary)
                                          : std::vector<float>{};
        const auto expected = reference::QuantMatMul(x, w.groups, format, bias, rows, k, outputs);
        const auto split = static_cast<uint32_t>(random.Below((outputs + 15) / 16));
        ASSERT_TRUE(SameBits(Multiply(kernels_, w, x, bias, rows, split), expected))
            << LayoutOf(format).name << " " << rows << "x" << k << "x" << outputs;
        auto added = expected;
        for (float& v : added) v = 7.0f + v;
        ASSERT_TRUE(SameBits(Multiply(kernels_, w, x, bias, rows, split, 5), added))
            << LayoutOf(format).name << " " << rows << "x" << k << "x" << outputs;
      }
    }
  }
}

// Slices of columns, blocks of panels and chunks of rows, several of each.
TEST_P(QuantTargets, HasTheScalarBitsWhereAllLoopsTurnTwice) {
  Random random(15);
  for (WeightFormat format : kFormats) {
    const uint32_t rows = 275, outputs = 16 * 17 + 3;
    const uint32_t k = LayoutOf(format).scale == ScaleKind::kGroup ? 2148 : 2304;
    const Matrix w(random, format, outputs, k, Numbers::kWide, 0);
    const auto x = Activations(random, size_t{rows} * k, Numbers::kWide);
    ASSERT_TRUE(SameBits(Multiply(kernels_, w, x, {}, rows, 9, 5),
                         Multiply(scalar::kQuantKernels, w, x, {}, rows, 3, 5)))
        << LayoutOf(format).name;
  }
}

TEST_P(QuantTargets, ARowDoesNotDependOnTheOthers) {
  Random random(12);
  for (WeightFormat format : kFormats) {
    const uint32_t k = 512, outputs = 40, rows = 300;
    const Matrix w(random, format, outputs, k, Numbers::kWide, 0);
    const auto x = Activations(random, size_t{rows} * k, Numbers::kWide);
    const auto all = Multiply(kernels_, w, x, {}, rows);
    for (uint32_t r : {0u, 1u, 5u, 15u, 16u, 31u, 255u, 256u, 299u}) {
      const std::vector<float> row(x.begin() + r * k, x.begin() + (r + 1) * k);
      const auto alone = Multiply(kernels_, w, row, {}, 1);
      ASSERT_TRUE(SameBits(alone, std::span(all).subspan(size_t{r} * outputs, outputs))) << r;
    }
    auto poisoned = x;  // a row that is not finite affects only itself
    for (uint32_t i = 0; i < k; ++i) poisoned[2 * k + i] = i % 3 == 0 ? NAN : INFINITY;
    const auto other = Multiply(kernels_, w, poisoned, {}, rows);
    for (uint32_t r = 0; r < rows; ++r) {
      const size_t at = size_t{r} * outputs;
      ASSERT_EQ(
          SameBits(std::span(other).subspan(at, outputs), std::span(all).subspan(at, outputs)),
          r != 2);
      if (r == 2) {
        ASSERT_TRUE(std::isnan(other[size_t{r} * outputs]));
      }
    }
  }
}

TEST_P(QuantTargets, LanesAndGroupsThatAreNotThereChangeNothing) {
  for (WeightFormat format : kFormats) {
    const bool super = LayoutOf(format).scale != ScaleKind::kGroup;
    for (uint32_t k : {super ? 256u : 32u, super ? 512u : 96u}) {
      Random one(13), two(13);
      const Matrix clean(one, format, 5, k, Numbers::kOrdinary, 0);
      const Matrix poison(two, format, 5, k, Numbers::kOrdinary, 0xff);  // f16 NaN
      const auto x = Activations(one, size_t{20} * k, Numbers::kOrdinary);
      ASSERT_TRUE(
          SameBits(Multiply(kernels_, clean, x, {}, 20), Multiply(kernels_, poison, x, {}, 20)))
          << LayoutOf(format).name;
    }
  }
}

TEST(WeightFormatTest, GroupsComeBackAsTheyWerePut) {
  Random random(14);
  for (WeightFormat format : kFormats) {
    const Matrix w(random, format, 33, 512, Numbers::kExtreme, 0);
    for (uint32_t o = 0; o < 33; ++o) {
      for (uint32_t g = 0; g < 16; ++g) {
        const WeightGroup got =
            GetGroup(format, w.packed.get() + o / 16 * PanelBytes(format, 512), o % 16, g);
        const WeightGroup& put = w.groups[o * 16 + g];
        ASSERT_EQ(0, std::memcmp(got.codes, put.codes, kGroup));
        ASSERT_EQ(got.d, put.d);
        ASSERT_EQ(got.dmin, put.dmin);
        ASSERT_EQ(got.sub_scale[0], put.sub_scale[0]);
        ASSERT_EQ(got.sub_scale[1], put.sub_scale[1]);
        ASSERT_EQ(got.sub_minimum, put.sub_minimum);
      }
    }
  }
}

TEST(WeightFormatTest, PackedBytesStayWithinThreePercentOfGguf) {
  const std::pair<WeightFormat, uint32_t> kGgufBytesOf256[] = {
      {WeightFormat::kQ8_0, 272}, {WeightFormat::kQ4_0, 144}, {WeightFormat::kQ4_1, 160},
      {WeightFormat::kQ5_0, 176}, {WeightFormat::kQ5_1, 192}, {WeightFormat::kQ4K, 144},
      {WeightFormat::kQ5K, 176},  {WeightFormat::kQ6K, 210},  {WeightFormat::kIq4Nl, 144}};
  for (auto [format, bytes] : kGgufBytesOf256) {
    EXPECT_LE(PanelBytes(format, 2048), uint64_t{bytes} * 8 * 16 * 103 / 100)
        << LayoutOf(format).name;
    EXPECT_GE(PanelBytes(format, 2048), uint64_t{bytes} * 8 * 16);
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantTargets, testing::ValuesIn(Units()),
                         [](const auto& unit) { return unit.param.name; });

}  // namespace
}  // namespace kvasir
