// Lists and checks of disk folders, for commands.
#include <filesystem>

#include "base/result.h"
#include "base/secret_place.h"
#include "base/system_error.h"
#include "base/user_folders.h"
#include "kvasir/disk.h"
#include "kvasir/disk_check.h"
#include "tier/set_aside.h"
#include "tier/store_check.h"
#include "tier/store_files.h"
#include "tier/unread_files.h"

namespace kvasir {
namespace {

// Checks that the folder exists: OpenRoot would make it.
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
                                                const SecretPlace& place) {
  return CheckDiskStores(folder, place, {});
}

Result<std::vector<StoreCheck>> CheckDiskStores(const std::string& folder, const SecretPlace& place,
                                                const DiskCheckProgress& progress) {
  KV_TRY(CheckThere(folder));
  KV_ASSIGN(const Secret secret, SecretAt(place));
  RealStorage storage;
  return CheckStores(storage, folder, secret, progress);
}

Result<UnreadableNames> UnreadableOnDisk(const std::string& folder, const SecretPlace& place,
                                         Unreadable what) {
  KV_TRY(CheckThere(folder));
  KV_ASSIGN(const Secret secret, SecretAt(place));
  RealStorage storage;
  const auto root = Own(storage, storage.OpenRoot(folder));
  if (!root) return FailErrno(root.error(), "cannot read {}", folder);
  const auto unread = ListUnread(storage, root->id(), secret);
  if (!unread) return FailErrno(unread.error(), "cannot read {}", folder);
  UnreadableNames all;
  for (const auto* some : {&unread->stores, &unread->keys}) {
    all.sealed.insert(all.sealed.end(), some->begin(), some->end());
  }
  for (const std::string& name : unread->names) {
    (NameBeforeAside(name) ? all.aside : all.sealed).push_back(name);
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
