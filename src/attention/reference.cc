#include "attention/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/kernels.h"
#include "simd/half.h"

namespace kvasir::reference {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float PowerOfTwo(float n) {
  return FloatOf(static_cast<uint32_t>(static_cast<int>(n) + 127) << 23);
}

struct Partial {
  std::vector<float> acc;
  float m = kMinusInfinity, l = 0;
};

// Tokens [begin, end) of one span, in tiles of 64.
Partial Span(std::span<const float> q, std::span<const float> k, std::span<const float> v,
             uint32_t begin, uint32_t end) {
  const size_t d = q.size();
  Partial p{std::vector<float>(d)};
  float lanes[16] = {};
  for (uint32_t tile = begin; tile < end; tile += kAttentionTile) {
    const uint32_t stop = std::min(end, tile + kAttentionTile);
    std::vector<float> score;
    for (uint32_t t = tile; t < stop; ++t) {
      float s = 0;
      for (size_t i = 0; i < d; ++i) s = std::fma(q[i], k[t * d + i], s);
      score.push_back(s);
    }
    const float top = *std::max_element(score.begin(), score.end());
    if (top > p.m) {
      if (p.m > kMinusInfinity) {
        const float shrink = Exp(p.m - top);
        for (float& lane : lanes) lane *= shrink;
        for (float& a : p.acc) a *= shrink;
      }
      p.m = top;
    }
    for (uint32_t t = tile; t < stop; ++t) {
      const float weight = Exp(score[t - tile] - p.m);
      lanes[t % 16] += weight;
      for (size_t i = 0; i < d; ++i) p.acc[i] = std::fma(weight, v[t * d + i], p.acc[i]);
    }
  }
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  p.l = lanes[0];
  return p;
}

}  // namespace

float Exp(float x) {
  if (x < -87.3f) return 0;
  if (x > 88.722839f) return std::numeric_limits<float>::infinity();
  const float n = std::nearbyintf(x * 1.44269504088896341f);
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.0f / 5040;
  for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = std::fma(p, r, c);
  const float half = std::nearbyintf(n * 0.5f);
  return p * PowerOfTwo(half) * PowerOfTwo(n - half);
}

std::vector<float> Attention(std::span<const float> q, std::span<const float> k,
                             std::span<const float> v, uint32_t limit) {
  Partial all = Span(q, k, v, 0, std::min(limit, kAttentionSpan));
  for (uint32_t begin = kAttentionSpan; begin < limit; begin += kAttentionSpan) {
    const Partial next = Span(q, k, v, begin, std::min(limit, begin + kAttentionSpan));
    const float m = std::max(all.m, next.m);
    const float ea = Exp(all.m - m), eb = Exp(next.m - m);
    for (size_t i = 0; i < q.size(); ++i) {
      all.acc[i] = std::fma(next.acc[i], eb, all.acc[i] * ea);
    }
    all.l = std::fma(next.l, eb, all.l * ea);
    all.m = m;
  }
  for (float& a : all.acc) a = a / all.l;
  return all.acc;
}

}  // namespace kvasir::reference
