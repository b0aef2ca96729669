// Target: the instruction set that kernels use. All targets compute the same bits.
#pragma once

#include <cfenv>
#include <optional>
#include <string_view>
#include <vector>

namespace kvasir {

enum class Target { kScalar, kAvx2, kAvx512 };

std::string_view NameOf(Target target);  // "scalar", "avx2", "avx512": values of KVASIR_TARGET
std::vector<Target> SupportedTargets();  // of this CPU, slowest first
// nullopt: no such name, or not on this CPU.
std::optional<Target> ParseTarget(std::string_view name);
Target BestTarget();

// Sets this thread's floating-point environment to what portable-1 needs: round to nearest, no
// flush to zero, no denormals-are-zero. Every thread that computes calls it first.
void EnterComputeThread();

// The same for a thread that is not ours, until the scope ends: then it is as it was.
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
