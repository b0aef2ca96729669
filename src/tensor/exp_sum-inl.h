#include "simd/vec16-inl.h"
#include "tensor/exp_sum.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

float SumOfExp(const float* x, uint32_t n, float max) {
  constexpr uint32_t kAtOnce = 4;  // vectors whose exponentials hide each other's latency
  const V16 top = Set(max);
  V16 sum = Zero();
  uint32_t i = 0;
  for (; i + 16 * kAtOnce <= n; i += 16 * kAtOnce) {
    V16 e[kAtOnce];
    KV_UNROLL
    for (uint32_t j = 0; j < kAtOnce; ++j) e[j] = ExpNonPositive(Sub(Load(x + i + 16 * j), top));
    KV_UNROLL
    for (uint32_t j = 0; j < kAtOnce; ++j) sum = Add(sum, e[j]);
  }
  for (; i + 16 <= n; i += 16) sum = Add(sum, ExpNonPositive(Sub(Load(x + i), top)));
  if (i < n) {
    const V16 e = ExpNonPositive(Sub(LoadFirst(n - i, x + i), top));
    sum = Add(sum, SelectLanes((1u << (n - i)) - 1, e, Zero()));
  }
  return SumTree(sum);
}

}  // namespace

const ExpSum kExpSum = SumOfExp;

}  // namespace kvasir::KVASIR_TARGET_NS
