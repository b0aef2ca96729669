// Machine: the kernel targets that this CPU supports, the processors that this process may use, and
// the limits that speed is compared with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// The rules that, with weights and tokens, decide each bit of a logit: docs/numerics.md.
inline constexpr const char* kNumericsVersion = "portable-1";
// What this version's bits are: SHA-256 of the lines "key digest" of tests/data/numerics.json, of
// the keys that tests/data/numerics-covered.txt lists. It changes only together with the version,
// or with a longer list.
inline constexpr const char* kNumericsDigest =
    "b4bce51c87208af3b8c9e3f51e8347f949ee10fe8c82c0dd217a429e92a49622";

// Returns the values that KVASIR_TARGET and EngineOptions::target accept on this CPU, slowest
// first. They always include "scalar".
std::vector<std::string> SupportedTargetNames();
// Returns the target that runs when neither of them names one.
std::string BestTargetName();

// The processors that this process may use, by its affinity mask and its cgroups.
struct MachineNode {  // of memory
  uint32_t id = 0, cpus = 0, cores = 0;
  uint64_t memory_bytes = 0;  // 0: unknown
};
struct MachineProcessors {
  uint32_t cpus = 0, cores = 0;     // threads of one core (SMT) are one core
  std::optional<double> cpu_limit;  // CPU time per second that a cgroup's quota allows
  std::vector<MachineNode> nodes;
};
MachineProcessors DescribeProcessors();
// Returns the default number of an engine's threads: one for each core, but not more than
// cpu_limit.
uint32_t DefaultThreads();

struct MachineLimits {
  double read_bytes_per_s = 0;  // all threads, reading memory that is not in the caches
  double f32_flops_per_s = 0;   // all threads, fused multiply-adds counted as two; 0: not measured
  uint32_t threads = 0;
};
// Takes about a second. threads absent: DefaultThreads().
MachineLimits MeasureLimits(std::optional<uint32_t> threads);
// Measures read_bytes_per_s alone, in about 0.2 s, with at most `most_bytes` of memory, which is
// free again when it returns. Absent: so few bytes say more of the caches than of the memory, or
// the system refuses them.
std::optional<MachineLimits> MeasureReading(std::optional<uint32_t> threads, uint64_t most_bytes);

// Keeps limits in the cache folder (EngineOptions::cache_dir), beside those of other numbers of
// threads. Fails with kNotFound if there is no cache folder, and as WriteAtomicFile does.
Status KeepLimits(const std::optional<std::string>& cache_dir, const MachineLimits& limits);
// Returns what KeepLimits kept last on a processor of this name with so many threads (absent:
// DefaultThreads()). A bad file is never an error.
std::optional<MachineLimits> KeptLimits(const std::optional<std::string>& cache_dir,
                                        std::optional<uint32_t> threads);

}  // namespace kvasir
