#include "tensor/reference.h"

#include <algorithm>
#include <cmath>

#include "simd/half.h"

namespace kvasir::reference {

std::vector<float> MatMul(std::span<const float> x, std::span<const float> w,
                          std::span<const float> bias, uint32_t rows, uint32_t k,
                          uint32_t outputs) {
  std::vector<float> y;
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t output = 0; output < outputs; ++output) {
      float sum = 0;
      for (uint32_t i = 0; i < k; ++i) sum = std::fma(x[row * k + i], w[output * k + i], sum);
      y.push_back(bias.empty() ? sum : sum + bias[output]);
    }
  }
  return y;
}

namespace {

// A row of activations in int8, by groups.
struct QuantRow {
  std::vector<int> q;
  std::vector<float> scale;
};

QuantRow Quantise(std::span<const float> x) {
  QuantRow row;
  for (size_t at = 0; at < x.size(); at += kGroup) {
    const auto group = x.subspan(at, std::min<size_t>(kGroup, x.size() - at));
    float amax = 0;
    bool finite = true;
    for (float v : group) {
      amax = std::max(amax, std::fabs(v));
      finite &= std::isfinite(v);
    }
    const bool some = finite && amax >= std::ldexp(1.0f, -100);
    row.scale.push_back(some ? amax / 127.0f : finite ? 0.0f : NAN);
    const float inverse = 127.0f / amax;
    for (size_t i = 0; i < kGroup; ++i) {
      const bool there = some && i < group.size();
      row.q.push_back(there ? static_cast<int>(std::nearbyint(group[i] * inverse)) : 0);
    }
  }
  return row;
}

int CodeOf(const WeightLayout& layout, uint8_t code) {
  if (layout.table) return kIq4NlLevels[code];
  return layout.code_bits == 8 ? static_cast<int8_t>(code) : code - layout.zero;
}

// acc + one group's part of a dot product.
float AddGroup(const WeightLayout& layout, const WeightGroup& w, const int* q, float da,
               float acc) {
  const float d = FromF16(w.d), dmin = FromF16(w.dmin);
  int dot[2] = {0, 0}, sum = 0;
  for (uint32_t i = 0; i < kGroup; ++i) {
    dot[i / 16] += CodeOf(layout, w.codes[i]) * q[i];
    sum += q[i];
  }
  if (layout.scale == ScaleKind::kSuperHalf) {
    for (int h = 0; h < 2; ++h) {
      const float dw = d * static_cast<float>(static_cast<int8_t>(w.sub_scale[h]));
      acc = std::fma(static_cast<float>(dot[h]), dw * da, acc);
    }
    return acc;
  }
  const bool super = layout.scale == ScaleKind::kSuper;
  const float dw = super ? d * static_cast<float>(w.sub_scale[0]) : d;
  acc = std::fma(static_cast<float>(dot[0] + dot[1]), dw * da, acc);
  if (!layout.minimum) return acc;
  const float minimum = super ? -(dmin * static_cast<float>(w.sub_minimum)) : dmin;
  return std::fma(minimum, da * static_cast<float>(sum), acc);
}

}  // namespace

std::vector<float> QuantMatMul(std::span<const float> x, std::span<const WeightGroup> w,
                               WeightFormat format, std::span<const float> bias, uint32_t rows,
                               uint32_t k, uint32_t outputs) {
  const WeightLayout layout = LayoutOf(format);
  const size_t groups = (k + kGroup - 1) / kGroup;
  std::vector<float> y;
  for (uint32_t row = 0; row < rows; ++row) {
    const QuantRow a = Quantise(x.subspan(size_t{row} * k, k));
    for (uint32_t output = 0; output < outputs; ++output) {
      float acc = 0;
      for (size_t g = 0; g < groups; ++g) {
        acc = AddGroup(layout, w[output * groups + g], &a.q[g * kGroup], a.scale[g], acc);
      }
      y.push_back(bias.empty() ? acc : acc + bias[output]);
    }
  }
  return y;
}

float SumOfSquares(std::span<const float> x) {
  float lanes[16] = {};
  for (size_t i = 0; i < x.size(); ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

std::vector<float> RmsNorm(std::span<const float> x, std::span<const float> w, float eps) {
  const float mean = SumOfSquares(x) / static_cast<float>(x.size());
  const float scale = 1.0f / std::sqrt(mean + eps);
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back(x[i] * scale * w[i]);
  return y;
}

void Rope(std::span<float> x, std::span<const float> cos, std::span<const float> sin) {
  const size_t half = x.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = std::fma(a, cos[i], (0.0f - b) * sin[i]);
    x[half + i] = std::fma(b, cos[i], a * sin[i]);
  }
}

}  // namespace kvasir::reference
