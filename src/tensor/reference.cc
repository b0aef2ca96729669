#include "tensor/reference.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

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

namespace {

float SumTree(float* lanes) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

float Exp(float x) {
  if (x < -87.3f) return 0;
  if (x > 88.722839f) return INFINITY;
  const float n = std::nearbyint(x * 1.44269504088896341f);
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.0f / 5040;
  for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    p = std::fma(p, r, c);
  }
  return std::ldexp(p, static_cast<int>(n));
}

float Polynomial(float x, std::initializer_list<float> highest_first) {
  float p = *highest_first.begin();
  for (const float* c = highest_first.begin() + 1; c != highest_first.end(); ++c) {
    p = std::fma(p, x, *c);
  }
  return p;
}

}  // namespace

std::vector<float> LayerNorm(std::span<const float> x, std::span<const float> w,
                             std::span<const float> b, float eps) {
  const auto n = static_cast<float>(x.size());
  float sums[16] = {}, squares[16] = {};
  for (size_t i = 0; i < x.size(); ++i) sums[i % 16] += x[i];
  const float mean = SumTree(sums) / n;
  for (size_t i = 0; i < x.size(); ++i) {
    squares[i % 16] = std::fma(x[i] - mean, x[i] - mean, squares[i % 16]);
  }
  const float scale = 1.0f / std::sqrt(SumTree(squares) / n + eps);
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back(std::fma((x[i] - mean) * scale, w[i], b[i]));
  return y;
}

float Tanh(float x) {
  const float magnitude = std::fabs(x), z = x * x;
  if (magnitude > 0.625f) {
    const float y = 1.0f - 2.0f / (Exp(magnitude + magnitude) + 1.0f);
    return x < 0 ? 0.0f - y : y;
  }
  const float p = Polynomial(z, {-5.7049783601537e-3f, 2.06390787275645e-2f, -5.37397121520788e-2f,
                                 1.33314421574700e-1f, -3.33332819401791e-1f});
  return std::fma(x * z, p, x);
}

float Erf(float x) {
  const float magnitude = std::fabs(x), z = x * x;
  if (magnitude > 1.0f) {
    const float m = std::min(magnitude, 4.0f), t = 1.0f / std::fma(m, 0.5f, 1.0f);
    const float q =
        Polynomial(t, {-2.3080165924053575e-1f, 6.366799907961797e-1f, -6.446058861265858e-2f,
                       3.968020518928984e-1f, 2.597006196671227e-1f, 1.8224811093695132e-3f});
    const float y = 1.0f - Exp(-(m * m)) * q;
    return x < 0 ? 0.0f - y : y;
  }
  return x * Polynomial(z, {7.853857665741926e-5f, -8.010192507694053e-4f, 5.188327558404843e-3f,
                            -2.685381186816954e-2f, 1.128358514700465e-1f, -3.761262582409016e-1f,
                            1.1283791657266873f});
}

float Activate(Activation act, float x) {
  switch (act) {
    case Activation::kSilu:
      return x / (1.0f + Exp(0.0f - x));
    case Activation::kGeluTanh: {
      const float inner = 0.79788456080286536f * std::fma(0.044715f, x * x * x, x);
      return 0.5f * x * (1.0f + Tanh(inner));
    }
    case Activation::kGelu:
      return 0.5f * x * (1.0f + Erf(x * 0.70710678118654752f));
    case Activation::kRelu:
      return x < 0 ? x - x : x;
  }
  return x;
}

float SoftCap(float cap, float x) { return cap * Tanh(x / cap) + (x - x); }

void Rope(std::span<float> x, std::span<const float> cos, std::span<const float> sin) {
  const size_t half = x.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = std::fma(a, cos[i], (0.0f - b) * sin[i]);
    x[half + i] = std::fma(b, cos[i], a * sin[i]);
  }
}

}  // namespace kvasir::reference
