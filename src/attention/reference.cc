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

// Computes tanh x as the kernels do (simd/tanh16-inl.h).
float TanhOfScore(float x) {
  const float magnitude = std::fabs(x), z = x * x;
  if (magnitude > 0.625f) {
    const float y = 1.0f - 2.0f / (Exp(magnitude + magnitude) + 1.0f);
    return x < 0 ? 0.0f - y : y;
  }
  float p = -5.7049783601537e-3f;
  for (float c :
       {2.06390787275645e-2f, -5.37397121520788e-2f, 1.33314421574700e-1f, -3.33332819401791e-1f}) {
    p = std::fma(p, z, c);
  }
  return std::fma(x * z, p, x);
}

struct Partial {
  std::vector<float> acc;
  float m = kMinusInfinity, l = 0;
};

bool Integers(const Numbers& n) { return TraitsOf(n.format).math == KvMath::kIntegers; }

// Returns the exact sum of products of integers, as f32.
float Dot(const Rounded& r, std::span<const float> x, size_t stride) {
  int64_t sum = 0;
  for (size_t i = 0; i < r.x.size(); ++i) sum += int64_t{r.x[i]} * static_cast<int>(x[i * stride]);
  return static_cast<float>(static_cast<int32_t>(sum));
}

float Score(std::span<const float> q, const Rounded& q16, const Numbers& k, size_t t) {
  const std::span<const float> key(k.x.data() + t * q.size(), q.size());
  if (Integers(k)) return Dot(q16, key, 1) * (k.scale[t] * q16.scale);
  float s = 0;
  for (size_t i = 0; i < q.size(); ++i) s = std::fma(q[i], key[i], s);
  return TraitsOf(k.format).scaled ? s * k.scale[t] : s;
}

bool Sees(const std::vector<bool>& seen, size_t token) { return seen.empty() || seen[token]; }

// acc += weight x V of tokens [tile, tile + weight.size()); the weight of those not seen is 0.
void AddValues(std::vector<float> weight, const Numbers& v, uint32_t tile,
               const std::vector<bool>& seen, std::vector<float>& acc) {
  const size_t d = acc.size();
  if (TraitsOf(v.format).scaled) {
    for (size_t t = 0; t < weight.size(); ++t) weight[t] *= v.scale[tile + t];
  }
  if (Integers(v)) {
    const Rounded rounded = RoundToInt16(weight);
    for (size_t i = 0; i < d; ++i) {
      const std::span<const float> column(v.x.data() + tile * d + i, v.x.size() - tile * d - i);
      acc[i] = std::fma(Dot(rounded, column, d), rounded.scale, acc[i]);
    }
    return;
  }
  for (size_t t = 0; t < weight.size(); ++t) {
    if (!Sees(seen, tile + t)) continue;
    for (size_t i = 0; i < d; ++i) acc[i] = std::fma(weight[t], v.x[(tile + t) * d + i], acc[i]);
  }
}

// Attends tokens [begin, end) of one span, in tiles of 64.
Partial Span(std::span<const float> q, const Numbers& k, const Numbers& v, uint32_t begin,
             uint32_t end, const std::vector<bool>& seen, float softcap) {
  Partial p{std::vector<float>(q.size())};
  const Rounded q16 = RoundToInt16(q);
  float lanes[16] = {};
  for (uint32_t tile = begin; tile < end; tile += kAttentionTile) {
    const uint32_t stop = std::min(end, tile + kAttentionTile);
    std::vector<float> score;  // -inf: not seen
    for (uint32_t t = tile; t < stop; ++t) {
      const float plain = Sees(seen, t) ? Score(q, q16, k, t) : kMinusInfinity;
      const bool capped = softcap != 0 && Sees(seen, t);
      score.push_back(capped ? softcap * TanhOfScore(plain) + (plain - plain) : plain);
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
    for (float& s : score) s = s == kMinusInfinity ? 0 : Exp(s - p.m);
    for (uint32_t t = tile; t < stop; ++t) lanes[t % 16] += score[t - tile];
    AddValues(score, v, tile, seen, p.acc);
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

Rounded RoundToInt16(std::span<const float> x) {
  float amax = 0;
  for (const float a : x) amax = std::max(amax, std::fabs(a));
  Rounded rounded{std::vector<int>(x.size()), 0};
  if (amax < 0x1p-100f) return rounded;
  const float inverse = 32767.0f / amax;
  for (size_t i = 0; i < x.size(); ++i) {
    rounded.x[i] =
        static_cast<int>(std::nearbyintf(std::clamp(x[i] * inverse, -32767.0f, 32767.0f)));
  }
  rounded.scale = amax / 32767.0f;
  return rounded;
}

std::vector<float> Attention(std::span<const float> q, const Numbers& k, const Numbers& v,
                             uint32_t limit, const std::vector<bool>& seen, float softcap) {
  Partial all = Span(q, k, v, 0, std::min(limit, kAttentionSpan), seen, softcap);
  for (uint32_t begin = kAttentionSpan; begin < limit; begin += kAttentionSpan) {
    const Partial next =
        Span(q, k, v, begin, std::min(limit, begin + kAttentionSpan), seen, softcap);
    if (next.l == 0) continue;
    if (all.l == 0) {
      all = next;
      continue;
    }
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
