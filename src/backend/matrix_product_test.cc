#include "backend/matrix_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "backend/panel_filler.h"
#include "base/bytes.h"
#include "base/random.h"
#include "simd/half.h"

namespace kvasir {
namespace {

std::vector<float> Numbers(Random& random, size_t count) {
  std::vector<float> x(count);
  for (float& v : x) v = static_cast<float>(random.Uniform() * 2 - 1);
  return x;
}

// A matrix of one run, from random numbers.
struct Matrix {
  Matrix(Random& random, WeightFormat format, uint32_t outputs, uint32_t k, bool with_bias)
      : bias(with_bias ? Numbers(random, RoundUp(outputs, 16)) : std::vector<float>{}) {
    const uint64_t panel_bytes = PanelBytes(format, k), panels = CeilDiv(outputs, kPanelOutputs);
    arena = std::move(*Arena::Create(panel_bytes * panels));
    std::byte* packed = arena.Take(panel_bytes * panels);
    // An unquantised format takes rows of the same type.
    const uint32_t bytes = LayoutOf(format).quantised() ? 4 : BytesOf(format);
    for (uint32_t first = 0; first < outputs; first += kPanelOutputs) {
      const uint32_t lanes = std::min(kPanelOutputs, outputs - first);
      const auto numbers = Numbers(random, size_t{lanes} * k);
      std::vector<std::byte> stored(numbers.size() * bytes);
      for (size_t i = 0; i < numbers.size(); ++i) {
        const uint16_t half = format == WeightFormat::kF16 ? ToF16(numbers[i]) : ToBf16(numbers[i]);
        std::memcpy(&stored[i * bytes], bytes == 4 ? static_cast<const void*>(&numbers[i]) : &half,
                    bytes);
      }
      std::vector<PanelRow> rows;
      for (uint32_t lane = 0; lane < lanes; ++lane) {
        rows.push_back(
            {&stored[size_t{lane} * k * bytes], bytes == 4 ? WeightFormat::kF32 : format});
      }
      EXPECT_EQ(FillPanel(format, rows, k, packed + first / kPanelOutputs * panel_bytes), 0u);
    }
    w = {{{packed, format, 0, outputs}}, 1, with_bias ? bias.data() : nullptr, outputs, k};
  }
  Arena arena;
  std::vector<float> bias;
  PackedMatrix w;
};

class MatrixProducts : public testing::TestWithParam<Target> {};

TEST_P(MatrixProducts, GatedIsTheProductOfItsParts) {
  using enum WeightFormat;
  constexpr WeightFormat kFormats[] = {kF32, kF16, kBf16, kI8, kQ8_0, kQ4_0};
  constexpr uint32_t kRows[] = {1, 2, 3, 16, 47, 48, 49, 96, 97, 255, 256, 257, 300};
  constexpr uint32_t kOutputs[] = {1, 15, 100, 350, 1000}, kColumns[] = {60, 256, 2304};
  constexpr float kUntouched = 77.0f;
  Random random(31);
  for (int repeat = 0; repeat < 60; ++repeat) {
    const uint32_t rows = kRows[random.Below(std::size(kRows))];
    const uint32_t outputs = kOutputs[random.Below(std::size(kOutputs))];
    const uint32_t k = kColumns[random.Below(std::size(kColumns))];
    if (GetParam() == Target::kScalar && uint64_t{rows} * outputs * k > 20'000'000) continue;
    const WeightFormat format = kFormats[random.Below(std::size(kFormats))];
    const WeightFormat other =
        repeat % 3 != 0 ? format : kFormats[random.Below(std::size(kFormats))];
    const bool bias = random.Below(2) != 0;
    const Matrix gate(random, format, outputs, k, bias), up(random, other, outputs, k, bias);
    const size_t x_stride = k + random.Below(2) * 13, y_stride = outputs + random.Below(2) * 7;
    const auto x = Numbers(random, rows * x_stride);

    const uint32_t threads = 1 + static_cast<uint32_t>(random.Below(3));
    const MatrixProduct::Options options{GetParam(), rows, k, threads};
    Arena counter;
    const MatrixProduct::Scratch count(options, counter);
    Arena arena = std::move(*Arena::Create(counter.used()));
    ThreadPool pool(threads, nullptr);
    MatrixProduct product(options, arena, pool);
    const auto call = [&](std::vector<float>& y) {
      y.assign(rows * y_stride, kUntouched);
      return MatrixProduct::Call{x.data(), x_stride, rows,
                                 y.data(), y_stride, Backend::Into::kReplace};
    };
    std::vector<float> expected, of_up, y;
    product.Run(gate.w, call(expected));
    product.Run(up.w, call(of_up));
    const Activation act = kAllActivations[random.Below(std::size(kAllActivations))];
    std::vector<float> activated = expected;
    for (uint32_t row = 0; row < rows; ++row) {
      float* at = &expected[row * y_stride];
      const TensorKernels& scalar = TensorKernelsFor(Target::kScalar);
      scalar.gated(act, at, &of_up[row * y_stride], outputs, at);
      scalar.activate(act, outputs, &activated[row * y_stride]);
    }
    product.RunActivated(gate.w, act, call(y));
    ASSERT_EQ(std::memcmp(y.data(), activated.data(), y.size() * sizeof(float)), 0)
        << LayoutOf(format).name << ", " << rows << "x" << k << "x" << outputs;
    product.RunGated(gate.w, up.w, act, call(y));
    ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0)
        << LayoutOf(format).name << " and " << LayoutOf(other).name << ", " << rows << "x" << k
        << "x" << outputs << ", " << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(All, MatrixProducts, testing::ValuesIn(SupportedTargets()),
                         [](const auto& target) { return std::string(NameOf(target.param)); });

}  // namespace
}  // namespace kvasir
