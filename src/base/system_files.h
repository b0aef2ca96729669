// What Linux says of this process in files of /proc and /sys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

// Returns the text of a small file without the spaces and newlines at its end; nullopt: it cannot
// be read.
std::optional<std::string> ReadSystemText(const std::string& path);
// Returns all of the text as a decimal number.
std::optional<int64_t> ParseSystemInt(std::string_view text);

// Returns the folders of this process's cgroup and of those above it, up to the top of the mount,
// innermost first. `controller`: "cpu" or "memory" of cgroups v1; "": cgroups v2. `root`: folder of
// sys and proc, "" for the real ones. Empty: no such hierarchy is mounted.
std::vector<std::string> CgroupFolders(const std::string& root, std::string_view controller);

}  // namespace kvasir
