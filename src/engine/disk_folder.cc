// Lists and checks of disk folders, for commands.
#include <filesystem>

#include "base/result.h"
#include "base/secret.h"
#include "base/system_error.h"
#include "base/user_folders.h"
#include "kvasir/disk.h"
#include "tier/store_check.h"
#include "tier/store_files.h"
#include "tier/unread_files.h"

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

namespace {

Result<Secret> SecretThere(const std::optional<std::string>& state_dir) {
  const std::filesystem::path state = StateDir(state_dir);
  std::error_code error;
  if (state.empty() || !std::filesystem::exists(state / "secret", error)) {
    return Fail(Code::kNotFound, "there is no secret in the state folder {}: no store is readable",
                state.string());
  }
  return LoadOrCreateSecret(state.string());
}

}  // namespace

Result<std::vector<StoreCheck>> CheckDiskStores(const std::string& folder,
                                                const std::optional<std::string>& state_dir) {
  KV_TRY(CheckThere(folder));
  KV_ASSIGN(const Secret secret, SecretThere(state_dir));
  RealStorage storage;
  return CheckStores(storage, folder, secret);
}

Result<std::vector<std::string>> UnreadableOnDisk(const std::string& folder,
                                                  const std::optional<std::string>& state_dir,
                                                  Unreadable what) {
  KV_TRY(CheckThere(folder));
  KV_ASSIGN(const Secret secret, SecretThere(state_dir));
  RealStorage storage;
  const auto root = Own(storage, storage.OpenRoot(folder));
  if (!root) return FailErrno(root.error(), "cannot read {}", folder);
  const auto unread = ListUnread(storage, root->id(), secret);
  if (!unread) return FailErrno(unread.error(), "cannot read {}", folder);
  std::vector<std::string> all;
  for (const auto* some : {&unread->stores, &unread->keys, &unread->names}) {
    all.insert(all.end(), some->begin(), some->end());
  }
  if (what == Unreadable::kListed) return all;
  const IoStatus removed = RemoveUnread(storage, root->id(), secret, *unread);
  if (!removed) return FailErrno(removed.error(), "cannot remove all in {}", folder);
  return all;
}

std::optional<std::string> DefaultDiskFolder(const std::optional<std::string>& cache_dir) {
  const std::filesystem::path folder = CacheDir(cache_dir);
  return folder.empty() ? std::nullopt : std::optional((folder / "kv").string());
}

}  // namespace kvasir
