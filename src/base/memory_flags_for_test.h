// The flags of this process's memory, as Linux tells them.
#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvasir {

// Returns the address ranges [begin, end) whose VmFlags in /proc/self/smaps have all these, such as
// "dd" (not in dumps) and "lo" (locked).
inline std::vector<std::pair<uintptr_t, uintptr_t>> RangesWithFlags(
    const std::vector<std::string>& flags) {
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
  std::ifstream smaps("/proc/self/smaps");
  std::pair<uintptr_t, uintptr_t> range;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream words(line);
    uintptr_t begin, end;
    char dash;
    if (words >> std::hex >> begin >> dash >> end && dash == '-') range = {begin, end};
    if (!line.starts_with("VmFlags:")) continue;
    bool has_all = true;
    for (const std::string& flag : flags) has_all &= line.find(" " + flag) != line.npos;
    if (has_all) ranges.push_back(range);
  }
  return ranges;
}

inline uint64_t BytesWithFlags(const std::vector<std::string>& flags) {
  uint64_t bytes = 0;
  for (const auto& [begin, end] : RangesWithFlags(flags)) bytes += end - begin;
  return bytes;
}

}  // namespace kvasir
