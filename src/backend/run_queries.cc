#include "backend/run_queries.h"

#include <algorithm>

#include "attention/kernels.h"
#include "format/pack.h"
#include "import/model_config.h"
#include "simd/math.h"
#include "tensor/kernels.h"

namespace kvasir {

void FillRopeAngles(const BackendOptions::Rope& rope, bool is_long, uint32_t position, float* cos) {
  const size_t half = rope.frequencies.size();
  const std::vector<double>& frequencies =
      is_long && !rope.long_frequencies.empty() ? rope.long_frequencies : rope.frequencies;
  for (size_t i = 0; i < half; ++i) {
    double sin_i, cos_i;
    SinCos(position * frequencies[i], &sin_i, &cos_i);
    cos[i] = static_cast<float>(cos_i * rope.magnitude);
    cos[half + i] = static_cast<float>(sin_i * rope.magnitude);
  }
}

void PrepareHeads(const BackendOptions& options, KvLayout::Place place, uint32_t heads, float* q) {
  float scale = options.query_scale;
  if (TraitsOf(options.layout.layout(place.group).key(place.slot).format).rotated) {
    TensorKernelsFor(options.target).hadamard(q, heads, options.head_dim);
    scale /= static_cast<float>(HadamardSize(options.head_dim));
  }
  AttentionKernelsFor(options.target).scale(q, scale, heads * options.head_dim, q);
}

RunQueries::RunQueries(const BackendOptions& options, uint32_t max_queries, Arena& arena)
    : o_(options),
      thread_floats_(uint64_t{options.heads + max_queries} * options.head_dim),
      places_(arena.TakeArray<float>(options.threads * thread_floats_)) {}

const float* RunQueries::Write(const Layer& layer, const float* q, Heads heads, uint32_t position,
                               uint32_t index, uint32_t thread) {
  const uint32_t num = heads.end - heads.begin;
  // Before the first place there is room for the heads that it does not have.
  float* const to =
      places_ + thread * thread_floats_ + (size_t{o_.heads} + size_t{index} * num) * o_.head_dim;
  std::copy_n(q + size_t{heads.begin} * o_.head_dim, size_t{num} * o_.head_dim, to);
  if (layer.rope) {
    const BackendOptions::Rope& rope = o_.ropes[*layer.rope];
    const auto half = static_cast<uint32_t>(rope.frequencies.size());
    float angles[ConfigLimits::kHeadDim];
    FillRopeAngles(rope, layer.is_long, position, angles);
    TensorKernelsFor(o_.target).rope(to, num, o_.head_dim, 2 * half, angles, angles + half);
  }
  PrepareHeads(o_, layer.place, num, to);
  return to - size_t{heads.begin} * o_.head_dim;
}

}  // namespace kvasir
