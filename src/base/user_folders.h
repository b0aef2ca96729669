// Where a user's files are.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace kvasir {

// Returns `option`, else systemd's $CACHE_DIRECTORY, $STATE_DIRECTORY, else $XDG_CACHE_HOME/kvasir
// (~/.cache), $XDG_STATE_HOME/kvasir (~/.local/state); empty without a home folder, because neither
// may be in a folder that others can write to. Creates nothing.
std::filesystem::path CacheDir(const std::optional<std::string>& option);
std::filesystem::path StateDir(const std::optional<std::string>& option);

}  // namespace kvasir
