// CpuTopology: the processors that this process may use, their cores and memory nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvasir {

// A processor as Linux numbers it. Two processors of one core (SMT) have the same core.
struct Cpu {
  uint32_t id;
  uint32_t core;  // the lowest id of the processors that share its core
  uint32_t node;
};

struct MemoryNode {
  uint32_t id;
  uint64_t memory_bytes;  // 0: not told
};

struct CpuTopology {
  std::vector<Cpu> cpus;  // allowed ones, by id; never empty
  // Those that have memory and an allowed processor, by id; never empty.
  std::vector<MemoryNode> nodes;
  // Processors' worth of time a period that the cgroups of this process grant, the tightest of
  // them; nullopt: no limit.
  std::optional<double> cpu_limit;

  uint32_t num_cores() const;
  // Threads that compute, unless the user says otherwise: a core each, and no more than the limit
  // pays for, for a throttled thread holds up all others. At least 1.
  uint32_t default_threads() const;
  // Where `threads` threads go when they are pinned: a processor of each core, node by node, then
  // the cores' second processors, then from the start again.
  std::vector<uint32_t> PinOrder(uint32_t threads) const;
};

// Of this process: its affinity mask, /sys/devices/system and the cgroups (v1 and v2) that
// /proc/self/cgroup names. `allowed`: processor ids. `root`: where sys and proc lie, "" for the
// real ones. What cannot be read is as a machine without it: a core for each processor, one node,
// no limit.
CpuTopology ReadCpuTopology(const std::string& root, const std::vector<uint32_t>& allowed);
CpuTopology ReadCpuTopology();

// Processor ids that the affinity mask of this thread allows; {0} when that cannot be read.
std::vector<uint32_t> AllowedCpus();
// This thread, and threads that it starts, run on these alone from here on. False when the kernel
// refuses.
bool PinThisThread(const std::vector<uint32_t>& cpus);

// Pins this thread to cpus[0] until the scope ends; does nothing when there is none.
class PinScope {
 public:
  explicit PinScope(const std::vector<uint32_t>& cpus) {
    if (cpus.empty()) return;
    before_ = AllowedCpus();
    PinThisThread({cpus[0]});
  }
  ~PinScope() {
    if (!before_.empty()) PinThisThread(before_);
  }
  PinScope(const PinScope&) = delete;
  PinScope& operator=(const PinScope&) = delete;

 private:
  std::vector<uint32_t> before_;
};

// Pages of [base, base + bytes), page-aligned and not touched yet, will come from `nodes` in turn,
// so that all memory buses are read at once. With fewer than two nodes nothing is asked of the
// kernel. False when it refuses (the pages then come from wherever they are first touched).
bool InterleavePages(void* base, uint64_t bytes, const std::vector<MemoryNode>& nodes);

}  // namespace kvasir
