#include "base/system_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace kvasir {
namespace {

namespace fs = std::filesystem;

// Where a cgroup hierarchy is mounted, and which cgroup is at the top of that mount.
struct CgroupMount {
  std::string point, top;
};

// Returns whether "cpu,cpuacct" names the controller.
bool Names(const std::string& list, std::string_view controller) {
  return ("," + list + ",").find("," + std::string(controller) + ",") != std::string::npos;
}

// Reads lines as proc(5) has them: ID PARENT MAJOR:MINOR ROOT MOUNT_POINT OPTIONS [TAGS...] - TYPE
// SOURCE SUPER_OPTIONS
std::optional<CgroupMount> FindMount(const std::string& root, std::string_view controller) {
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 5 || words.end() - dash < 4) continue;
    const bool fits = controller.empty() ? dash[1] == "cgroup2"
                                         : dash[1] == "cgroup" && Names(dash[3], controller);
    if (fits) return CgroupMount{words[4], words[3]};
  }
  return std::nullopt;
}

// Returns the path of this process in the v2 hierarchy, or in that of a v1 controller.
// cgroups(7): "0::/path" and "4:cpu,cpuacct:/path".
std::optional<std::string> FindCgroup(const std::string& root, std::string_view controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? names.empty() : Names(names, controller)) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> ReadSystemText(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::string text((std::istreambuf_iterator<char>(file)), {});
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::optional<int64_t> ParseSystemInt(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string> CgroupFolders(const std::string& root, std::string_view controller) {
  const auto mount = FindMount(root, controller);
  const auto cgroup = FindCgroup(root, controller);
  if (!mount || !cgroup) return {};
  // In a container the mount shows only a part of the tree, and its top is not "/".
  fs::path path = fs::path(*cgroup).lexically_normal().relative_path();
  if (mount->top != "/") {
    const fs::path below = fs::path(*cgroup).lexically_relative(mount->top);
    path = below.empty() || *below.begin() == ".." ? fs::path() : below;
  }
  if (path == ".") path.clear();
  std::vector<std::string> folders;
  for (;; path = path.parent_path()) {
    folders.push_back(root + mount->point + (path.empty() ? "" : "/") + path.string());
    if (path.empty()) return folders;
  }
}

}  // namespace kvasir
