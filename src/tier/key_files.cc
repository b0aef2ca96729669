#include "tier/key_files.h"

#include <algorithm>
#include <cerrno>

#include "base/fault.h"
#include "base/hex.h"
#include "tier/set_aside.h"

namespace kvasir {

bool IsKeyFileName(std::string_view name) {
  return name.size() == 2 * sizeof(Digest) && IsHex(name);
}

IoResult<std::vector<OwnerKey>> LoadKeys(Storage& storage, FileId keys, const Secret& secret,
                                         const StoreId& store) {
  const IoResult<std::vector<std::string>> names = storage.List(keys);
  if (!names) return IoFailed(names.error());
  std::vector<OwnerKey> loaded;
  // A key that moves would leave a copy.
  loaded.reserve(std::min<size_t>(names->size(), OwnerKeys::kMaxOwners));
  for (const std::string& name : *names) {
    if (!IsKeyFileName(name)) continue;
    const IoResult<std::string> file = ReadSmallFile(storage, keys, name, kKeyFileBytes);
    if (!file) {
      // Not a key file. Any other failure does not make an owner's records orphans.
      if (file.error() == ENOENT || IsNoFile(file.error())) continue;
      return IoFailed(file.error());
    }
    auto key = UnsealKeyFile(secret, store, name, std::as_bytes(std::span(*file)));
    if (!key) continue;
    if (KeyFileName(secret, key->owner) == name) loaded.push_back(*key);
    WipeKeys({&*key, 1});
  }
  return loaded;
}

namespace {

// Returns whether the file is a key file that this secret unseals. An error of the device is
// returned: it says nothing about the file.
IoResult<bool> CanUnsealKeyFile(Storage& storage, FileId keys, const Secret& secret,
                                const StoreId& store, const std::string& name) {
  const IoResult<std::string> file = ReadSmallFile(storage, keys, name, kKeyFileBytes);
  if (!file) {
    if (file.error() == ENOENT || IsNoFile(file.error())) return false;
    return IoFailed(file.error());
  }
  auto key = UnsealKeyFile(secret, store, name, std::as_bytes(std::span(*file)));
  if (key) WipeKeys({&*key, 1});
  return key.has_value();
}

}  // namespace

IoResult<std::vector<std::string>> UnreadKeys(Storage& storage, FileId keys, const Secret& secret,
                                              const StoreId& store) {
  const IoResult<std::vector<std::string>> names = storage.List(keys);
  if (!names) return IoFailed(names.error());
  std::vector<std::string> unread;
  for (const std::string& name : *names) {
    const bool is_aside = NameBeforeAside(name).has_value();
    if (!is_aside) {
      if (!IsKeyFileName(name)) continue;
      const IoResult<bool> unseals = CanUnsealKeyFile(storage, keys, secret, store, name);
      if (!unseals) return IoFailed(unseals.error());
      if (*unseals) continue;
    }
    unread.push_back(name);
  }
  return unread;
}

IoStatus RemoveUnreadKeys(Storage& storage, FileId keys, const Secret& secret,
                          const StoreId& store) {
  const auto unread = UnreadKeys(storage, keys, secret, store);
  if (!unread) return IoFailed(unread.error());
  for (const std::string& name : *unread) {
    if (const auto removed = RemoveFile(storage, keys, name); !removed) {
      return IoFailed(removed.error());
    }
  }
  return storage.SyncFolder(keys);
}

IoStatus WriteKeyFile(Storage& storage, FileId keys, const Secret& secret, const StoreId& store,
                      const OwnerKey& key) {
  const std::string old = KeyFileName(secret, key.owner);
  const IoResult<bool> unseals = CanUnsealKeyFile(storage, keys, secret, store, old);
  if (!unseals) return IoFailed(unseals.error());
  if (storage.FactsOf(keys, old) && !*unseals) {
    if (const auto aside = SetAside(storage, keys, old); !aside) return IoFailed(aside.error());
  }
  RecordSalt salt;
  if (!storage.FillRandom(salt)) return IoFailed(EIO);
  const std::optional<KeyFileBytes> file = SealKeyFile(secret, store, key, salt);
  if (!file) return IoFailed(ENOMEM);
  const std::string_view bytes(reinterpret_cast<const char*>(file->data()), file->size());
  const std::string name = KeyFileName(secret, key.owner);
  const IoStatus written =
      PublishFile(storage, keys, name, bytes,
                  FaultActive(Fault::kUnsyncedKeyFolder) ? FileSync::kUnsynced : FileSync::kSynced);
  return written;
}

IoResult<bool> RemoveKeyFile(Storage& storage, FileId keys, const std::string& name) {
  if (FaultActive(Fault::kKeptKey)) return true;
  const IoResult<bool> removed = RemoveFile(storage, keys, name);
  if (!removed) return removed;
  const IoResult<bool> had_asides = RemoveAsidesOf(storage, keys, name);
  if (!had_asides) return had_asides;
  // Also where it was missing: its removal by an erase that broke off may not be durable yet.
  if (const IoStatus synced = storage.SyncFolder(keys); !synced) return IoFailed(synced.error());
  return *removed || *had_asides;
}

IoStatus RemoveUnreadKeysOf(Storage& storage, FileId keys, const Secret& secret,
                            const StoreId& store, const std::string& name) {
  const IoResult<bool> unseals = CanUnsealKeyFile(storage, keys, secret, store, name);
  if (!unseals) return IoFailed(unseals.error());
  const IoResult<bool> removed =
      *unseals ? RemoveAsidesOf(storage, keys, name) : RemoveKeyFile(storage, keys, name);
  return removed ? storage.SyncFolder(keys) : IoFailed(removed.error());
}

}  // namespace kvasir
