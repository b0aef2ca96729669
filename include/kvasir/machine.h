// What this machine is to Kvasir: the kernel targets of its CPU, and the limits that speed is
// measured against.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvasir {

// What decides the bits of a logit beside weights and tokens: docs/numerics.md.
inline constexpr const char* kNumericsVersion = "portable-1";

// Values that KVASIR_TARGET and EngineOptions::target accept on this CPU, slowest first; "scalar"
// among them.
std::vector<std::string> SupportedTargetNames();
// What runs when nothing is forced.
std::string BestTargetName();

// The processors that this process may use: its affinity mask, and what its cgroups grant.
struct MachineNode {  // of memory
  uint32_t id = 0, cpus = 0, cores = 0;
  uint64_t memory_bytes = 0;  // 0: not told
};
struct MachineProcessors {
  uint32_t cpus = 0, cores = 0;     // threads of one core (SMT) are one core
  std::optional<double> cpu_limit;  // processors' worth of time, by a cgroup's quota
  std::vector<MachineNode> nodes;
};
MachineProcessors DescribeProcessors();
// Threads of an engine that was not told otherwise: one for each core, no more than the limit.
uint32_t DefaultThreads();

struct MachineLimits {
  double read_bytes_per_s = 0;  // all threads reading memory that is in no cache
  double f32_flops_per_s = 0;   // all threads, fused multiply-adds counted as two
  uint32_t threads = 0;
};
// Takes about a second. threads absent: DefaultThreads().
MachineLimits MeasureLimits(std::optional<uint32_t> threads);

}  // namespace kvasir
