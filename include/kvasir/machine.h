// What this machine is to Kvasir: the kernel targets of its CPU, and the limits that speed is
// measured against.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// What decides the bits of a logit beside weights and tokens: docs/numerics.md.
inline constexpr const char* kNumericsVersion = "portable-1";

// Values that KVASIR_TARGET and EngineOptions::target accept on this CPU, slowest first; "scalar"
// among them.
std::vector<std::string> SupportedTargetNames();
// What runs when nothing is forced.
std::string BestTargetName();
// CPUs that this process may use: the threads of an engine that was not told otherwise.
uint32_t UsableCpus();

struct MachineLimits {
  double read_bytes_per_s = 0;  // all threads reading memory that is in no cache
  double f32_flops_per_s = 0;   // all threads, fused multiply-adds counted as two
  uint32_t threads = 0;
};
// Takes about a second. threads 0: UsableCpus().
MachineLimits MeasureLimits(uint32_t threads);

}  // namespace kvasir
