// Lists and checks of disk folders, for commands.
#include <filesystem>

#include "base/result.h"
#include "engine/model_files.h"
#include "kvasir/disk.h"
#include "tier/store_check.h"

namespace kvasir {
namespace {

// OpenRoot would make the folder.
Status CheckThere(const std::string& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return {};
  return Fail(Code::kNotFound, "there is no folder {}", folder);
}

}  // namespace

Result<std::vector<StoreListing>> ListDiskStores(const std::string& folder) {
  KV_TRY(CheckThere(folder));
  RealStorage storage;
  return ListStores(storage, folder);
}

Result<std::vector<StoreCheck>> CheckDiskStores(const std::string& folder,
                                                const std::optional<std::string>& state_dir) {
  KV_TRY(CheckThere(folder));
  const std::filesystem::path state = StateDir(state_dir);
  std::error_code error;
  if (state.empty() || !std::filesystem::exists(state / "secret", error)) {
    return Fail(Code::kNotFound, "there is no secret in the state folder {}: no store is readable",
                state.string());
  }
  KV_ASSIGN(const Secret secret, LoadOrCreateSecret(state.string()));
  RealStorage storage;
  return CheckStores(storage, folder, secret);
}

std::optional<std::string> DefaultDiskFolder(const std::optional<std::string>& cache_dir) {
  const std::filesystem::path folder = CacheDir(cache_dir);
  return folder.empty() ? std::nullopt : std::optional((folder / "kv").string());
}

}  // namespace kvasir
