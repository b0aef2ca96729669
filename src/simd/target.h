// Target: the instruction set that kernels use. All targets compute the same bits.
#pragma once

#include <cfenv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace kvasir {

// kAvxVnni and kAvx512Vnni add 8-bit dot products to kAvx2 and kAvx512; kAmx adds tiles of them.
enum class Target { kScalar, kAvx2, kAvxVnni, kAvx512, kAvx512Vnni, kAmx, kNeon };

// "scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "amx", "neon" (with dot products): values of
// KVASIR_TARGET.
std::string_view NameOf(Target target);
// Returns the target whose float kernels it uses: scalar, avx2, avx512 or neon.
Target FloatTarget(Target target);
// What a target has for one purpose: a table of kernels, or one of them.
template <typename T>
struct OfTarget {
  Target target;
  const T* value;
};
// Returns the last value whose target is not above `target`: a target uses what the next lower one
// has where it has nothing itself. REQUIRES: targets ascend from kScalar.
template <typename T, size_t kSize>
const T& ValueFor(Target target, const OfTarget<T> (&values)[kSize]) {
  size_t last = 0;
  while (last + 1 < kSize && values[last + 1].target <= target) ++last;
  return *values[last].value;
}

// Returns the targets of this CPU that this build has (-DKVASIR_KERNELS=native leaves some out),
// slowest first.
std::vector<Target> SupportedTargets();
// nullopt: an unknown name, or a target that is not one of SupportedTargets().
std::optional<Target> ParseTarget(std::string_view name);
Target BestTarget();

// Sets this thread's floating-point environment to what portable-1 needs: round to nearest, no
// flush to zero, no denormals-are-zero. Every thread that computes calls it first.
void EnterComputeThread();

// Sets the environment of a foreign thread, and restores its own at the end of the scope.
class ComputeScope {
 public:
  ComputeScope() {
    std::fegetenv(&saved_);
    EnterComputeThread();
  }
  ~ComputeScope() { std::fesetenv(&saved_); }
  ComputeScope(const ComputeScope&) = delete;
  ComputeScope& operator=(const ComputeScope&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace kvasir
