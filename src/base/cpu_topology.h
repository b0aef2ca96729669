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
  uint64_t memory_bytes;  // 0: unknown
};

struct CpuTopology {
  std::vector<Cpu> cpus;  // allowed ones, ascending by id; never empty
  // Nodes with memory and an allowed processor, ascending by id; never empty.
  std::vector<MemoryNode> nodes;
  // CPU time per second that the cgroups of this process allow (the tightest); nullopt: no limit.
  std::optional<double> cpu_limit;

  uint32_t num_cores() const;
  // Returns the default number of computing threads: one for each core, but not more than
  // cpu_limit, because a throttled thread delays all others. At least 1.
  uint32_t default_threads() const;
  // Returns the processors of `threads` pinned threads: one processor of each core, node by node,
  // then the cores' second processors, then from the start again.
  std::vector<uint32_t> PinOrder(uint32_t threads) const;
};

// Reads the topology for this process from /sys/devices/system and the cgroups (v1 and v2) of
// /proc/self/cgroup. `allowed`: processor ids. `root`: folder of sys and proc, "" for the real
// ones. Defaults where something cannot be read: one core for each processor, one node, no limit.
CpuTopology ReadCpuTopology(const std::string& root, const std::vector<uint32_t>& allowed);
CpuTopology ReadCpuTopology();

// Returns the processor ids that the affinity mask of this thread allows; {0} when that cannot be
// read.
std::vector<uint32_t> AllowedCpus();
// Pins this thread: from now on it and threads that it starts run only on these processors. False
// when the kernel refuses.
bool PinThisThread(const std::vector<uint32_t>& cpus);

// Pins this thread to cpus[0] until the scope ends; does nothing when `cpus` is empty.
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

// Makes the kernel take the pages of [base, base + bytes) from `nodes` in turn, so that all memory
// buses are read at once. REQUIRES: the range is page-aligned and untouched. Does nothing with
// fewer than two nodes. False when the kernel refuses (then a page comes from the node of its first
// use).
bool InterleavePages(void* base, uint64_t bytes, const std::vector<MemoryNode>& nodes);

}  // namespace kvasir
