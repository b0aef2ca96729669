#include "tensor/reference.h"

#include <cmath>

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
