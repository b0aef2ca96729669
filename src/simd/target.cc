#include "simd/target.h"

#include <cfenv>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kvasir {

std::string_view NameOf(Target target) {
  switch (target) {
    case Target::kScalar:
      return "scalar";
    case Target::kAvx2:
      return "avx2";
    case Target::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::vector<Target> SupportedTargets() {
  std::vector<Target> targets{Target::kScalar};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    targets.push_back(Target::kAvx2);
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    targets.push_back(Target::kAvx512);
  }
#endif
  return targets;
}

std::optional<Target> ParseTarget(std::string_view name) {
  for (Target target : SupportedTargets()) {
    if (NameOf(target) == name) return target;
  }
  return std::nullopt;
}

Target BestTarget() { return SupportedTargets().back(); }

void EnterComputeThread() {
#if defined(__x86_64__)
  _mm_setcsr(0x1f80);  // all exceptions masked, round to nearest even, no FTZ, no DAZ
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
#endif
  std::fesetround(FE_TONEAREST);
}

}  // namespace kvasir
