#include "base/memory_limit.h"

#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/system_files.h"

namespace kvasir {
namespace {

// Reads "MemTotal:       24566332 kB"
uint64_t MachineBytes(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    uint64_t kilobytes = 0;
    if (fields >> name >> kilobytes && name == "MemTotal:") return kilobytes << 10;
  }
  return UINT64_MAX;
}

// What the stack of a thread takes where `ulimit -s` sets no limit.
constexpr uint64_t kDefaultStackBytes = 8 << 20;
// Threads of a server with a disk, beside those that compute.
constexpr uint64_t kThreads = 16;

uint64_t UlimitOf(decltype(RLIMIT_AS) which) {
  rlimit limit;
  return getrlimit(which, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur
                                                                          : UINT64_MAX;
}

}  // namespace

MemoryLimit ReadMemoryLimit(const std::string& root, const MemoryUlimits& ulimits) {
  MemoryLimit least{MachineBytes(root), "the machine's RAM"};
  const auto take = [&least](uint64_t bytes, const std::string& source) {
    if (bytes < least.bytes) least = {bytes, source};
  };
  for (const auto& [controller, name] :
       {std::pair{"", "memory.max"}, {"memory", "memory.limit_in_bytes"}}) {
    for (const std::string& folder : CgroupFolders(root, controller)) {
      const auto bytes =
          ParseSystemInt(ReadSystemText(folder + "/" + name).value_or(""));  // else "max"
      if (bytes && *bytes > 0) {
        take(static_cast<uint64_t>(*bytes),
             std::string(name) + " of " + folder.substr(root.size()));
      }
    }
  }
  take(ulimits.address_space, "ulimit -v");
  take(ulimits.data, "ulimit -d");
  return least;
}

bool IsInMemory(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error);
  while (!std::filesystem::exists(path, error) && path.has_relative_path()) {
    path = path.parent_path();
  }
  struct statfs about;
  return statfs(path.c_str(), &about) == 0 &&
         (about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC);
}

MemoryLimit ReadMemoryLimit() {
  const uint64_t address_space = UlimitOf(RLIMIT_AS);
  const uint64_t stack = std::min(UlimitOf(RLIMIT_STACK), kDefaultStackBytes);
  const uint64_t stacks = address_space == UINT64_MAX ? 0 : kThreads * stack;
  return ReadMemoryLimit("",
                         {address_space - std::min(address_space, stacks), UlimitOf(RLIMIT_DATA)});
}

}  // namespace kvasir
