// MemoryLimit: how much memory this process may take.
#pragma once

#include <cstdint>
#include <string>

namespace kvasir {

struct MemoryLimit {
  uint64_t bytes = UINT64_MAX;
  std::string source;  // "the machine's RAM", "memory.max of /sys/fs/cgroup/job", "ulimit -v"
};

// As getrlimit gives them, in bytes; UINT64_MAX: none.
struct MemoryUlimits {
  uint64_t address_space = UINT64_MAX, data = UINT64_MAX;
};

// Returns the least of the machine's RAM, the limits of this process's cgroup and of those above it
// (v1 and v2), and `ulimits`. `root`: folder of sys and proc, "" for the real ones. UINT64_MAX:
// nothing says how much.
MemoryLimit ReadMemoryLimit(const std::string& root, const MemoryUlimits& ulimits);
MemoryLimit ReadMemoryLimit();

// Tells whether the files of this folder, or of the one in which it would be made, are memory that
// counts as a process's (tmpfs, ramfs).
bool IsInMemory(const std::string& folder);

}  // namespace kvasir
