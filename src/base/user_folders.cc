#include "base/user_folders.h"

#include <cstdlib>
#include <string_view>

namespace kvasir {
namespace {

namespace fs = std::filesystem;

fs::path UserDir(const std::optional<std::string>& option, const char* systemd, const char* xdg,
                 const char* below_home) {
  if (option) return *option;
  // systemd sets it: a list of absolute folders with colons, of which the first one counts.
  if (const char* list = std::getenv(systemd); list != nullptr && *list == '/') {
    return std::string_view(list).substr(0, std::string_view(list).find(':'));
  }
  const auto folder = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  if (const fs::path dir = folder(xdg); !dir.empty()) return dir / "kvasir";
  if (const fs::path home = folder("HOME"); !home.empty()) return home / below_home / "kvasir";
  return {};
}

}  // namespace

fs::path CacheDir(const std::optional<std::string>& option) {
  return UserDir(option, "CACHE_DIRECTORY", "XDG_CACHE_HOME", ".cache");
}

fs::path StateDir(const std::optional<std::string>& option) {
  return UserDir(option, "STATE_DIRECTORY", "XDG_STATE_HOME", ".local/state");
}

}  // namespace kvasir
