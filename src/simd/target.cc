#include "simd/target.h"

#include <cfenv>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace kvasir {

std::string_view NameOf(Target target) {
  switch (target) {
    case Target::kScalar:
      return "scalar";
    case Target::kAvx2:
      return "avx2";
    case Target::kAvxVnni:
      return "avxvnni";
    case Target::kAvx512:
      return "avx512";
    case Target::kAvx512Vnni:
      return "avx512vnni";
    case Target::kAmx:
      return "amx";
    case Target::kNeon:
      return "neon";
  }
  return "unknown";
}

Target FloatTarget(Target target) {
  if (target == Target::kScalar || target == Target::kNeon) return target;
  return target <= Target::kAvxVnni ? Target::kAvx2 : Target::kAvx512;
}

#if defined(__x86_64__)
namespace {

// Reads CPUID leaf 7, because GCC 12's __builtin_cpu_supports knows neither feature.
bool HasAvxVnni() {
  uint32_t a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
}
bool HasAmxInt8() {
  uint32_t a, b, c, d;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  const bool tiles = (d >> 24 & 1) != 0, int8 = (d >> 25 & 1) != 0;
  if (!tiles || !int8) return false;
  // Linux grants tile registers on request, once for all threads of the process.
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

std::vector<Target> DetectTargets() {
  std::vector<Target> targets{Target::kScalar};
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return targets;
  targets.push_back(Target::kAvx2);
  if (HasAvxVnni()) targets.push_back(Target::kAvxVnni);
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return targets;
  }
  targets.push_back(Target::kAvx512);
  if (!__builtin_cpu_supports("avx512vnni")) return targets;
  targets.push_back(Target::kAvx512Vnni);
  if (HasAmxInt8()) targets.push_back(Target::kAmx);
  return targets;
}

// Returns whether this build has no kernels for it (cmake/kvasir.cmake: KVASIR_KERNELS).
bool IsLeftOut(Target target) {
  std::string_view names = KVASIR_LEFT_OUT;
  while (!names.empty()) {
    const size_t end = names.find(',');
    if (names.substr(0, end) == NameOf(target)) return true;
    names = end == names.npos ? "" : names.substr(end + 1);
  }
  return false;
}

}  // namespace
#endif

std::vector<Target> SupportedTargets() {
#if defined(__x86_64__)
  static const auto* targets = [] {
    auto* built = new std::vector<Target>(DetectTargets());
    std::erase_if(*built, IsLeftOut);
    return built;
  }();
  return *targets;
#elif defined(__aarch64__)
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return {Target::kScalar};
  return {Target::kScalar, Target::kNeon};
#else
  return {Target::kScalar};
#endif
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
