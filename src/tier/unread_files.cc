#include "tier/unread_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "tier/erase_files.h"
#include "tier/key_files.h"
#include "tier/owner_keys.h"
#include "tier/set_aside.h"
#include "tier/store_files.h"

namespace kvasir {
namespace {

// Tells whether it is a session store put aside: its rows may be readable all the same, once it is
// mended.
bool IsAsideOfRows(const std::string& name) {
  const std::optional<std::string> before = NameBeforeAside(name);
  return before && before->starts_with(kRowsName);
}

// Returns whether the secret unseals a segment or a key of the store. A folder without either has
// nothing to unseal.
IoResult<bool> CanUnsealStore(Storage& storage, FileId folder, const Secret& secret,
                              const StoreId& store, uint64_t* bytes) {
  const IoResult<std::vector<std::string>> names = storage.List(folder);
  if (!names) return IoFailed(names.error());
  const HmacKey head_key = HeadKeyOf(secret);
  bool has_segments = false;
  for (const std::string& name : *names) {
    const std::optional<uint32_t> segment = ParseSegmentFileName(name);
    if (!segment) continue;
    has_segments = true;
    const IoResult<OpenedFile> file = Own(storage, storage.OpenFile(folder, name, OpenMode::kRead));
    if (!file && IsNoFile(file.error())) continue;
    if (!file) return IoFailed(file.error());
    const auto head = ReadHead(storage, file->id(), head_key, store, *segment);
    if (!head) return IoFailed(head.error());
    if (*head) return true;
    if (const auto facts = storage.FactsOf(file->id())) *bytes += facts->blocks_bytes;
  }
  const IoResult<OpenedFile> keys = Own(storage, storage.OpenFolder(folder, "keys"));
  if (!keys) return !has_segments;
  auto loaded = LoadKeys(storage, keys->id(), secret, store);
  if (!loaded) return IoFailed(loaded.error());
  const bool has_key = !loaded->empty();
  WipeKeys(*loaded);
  if (has_key) return true;
  const auto unread = UnreadKeys(storage, keys->id(), secret, store);
  return !has_segments && (!unread || unread->empty());
}

// Lists links, and segments of another version. Damaged ones are fsck's to report.
IoResult<std::vector<std::string>> UnreadSegments(Storage& storage, FileId folder) {
  IoResult<std::vector<std::string>> names = storage.List(folder);
  if (!names) return names;
  std::erase_if(*names, [&](const std::string& name) {
    if (!ParseSegmentFileName(name)) return true;
    const auto file = Own(storage, storage.OpenFile(folder, name, OpenMode::kRead));
    return file ? !HasOtherVersion(storage, file->id()) : file.error() != ELOOP;
  });
  return names;
}

}  // namespace

IoStatus RemoveAsidesOfRows(Storage& storage, FileId root) {
  const IoResult<std::vector<std::string>> names = storage.List(root);
  if (!names) return IoFailed(names.error());
  for (const std::string& name : *names) {
    if (!IsAsideOfRows(name)) continue;
    const IoResult<bool> removed = RemoveFile(storage, root, name);
    if (!removed) return IoFailed(removed.error());
  }
  return storage.SyncFolder(root);
}

IoResult<UnreadFiles> ListUnread(Storage& storage, FileId root, const Secret& secret) {
  UnreadFiles unread;
  const IoResult<std::vector<std::string>> names = storage.List(root);
  if (!names) return IoFailed(names.error());
  const auto intents = ListIntents(storage, root, secret);
  if (!intents) return IoFailed(intents.error());
  for (const std::string& name : *names) {
    const bool is_intent = name.starts_with(kIntentPrefix) && !NameBeforeAside(name) &&
                           std::ranges::none_of(*intents, [&](const EraseIntent& intent) {
                             return IntentName(intent) == name;
                           });
    // The process that has begun an erase may still be at it.
    const std::string of = name.substr(std::min(name.size(), kIntentPrefix.size()), kStoreDigits);
    const IoResult<bool> at_it =
        is_intent && ParseStoreName(of) ? IsStoreLocked(storage, root, of) : false;
    const bool is_aside = NameBeforeAside(name) && !IsAsideOfRows(name);
    if (is_aside || IsLinkToRowsKeys(storage, root, name) || (is_intent && at_it && !*at_it)) {
      unread.names.push_back(name);
    }
    const std::optional<StoreId> store = ParseStoreName(name);
    if (!store) continue;
    const IoResult<bool> locked = IsStoreLocked(storage, root, name);
    if (!locked || *locked) continue;
    const IoResult<OpenedFile> folder = Own(storage, storage.OpenFolder(root, name));
    if (!folder) continue;
    uint64_t bytes = 0;
    const IoResult<bool> unseals = CanUnsealStore(storage, folder->id(), secret, *store, &bytes);
    if (!unseals) continue;
    if (!*unseals) {
      unread.stores.push_back(name);
      unread.bytes += bytes;
      continue;
    }
    const IoResult<OpenedFile> keys = Own(storage, storage.OpenFolder(folder->id(), "keys"));
    const auto files = keys ? UnreadKeys(storage, keys->id(), secret, *store)
                            : IoResult<std::vector<std::string>>();
    for (const std::string& key : files ? *files : std::vector<std::string>()) {
      unread.keys.push_back(fmt::format("{}/keys/{}", name, key));
    }
    for (const auto& inside :
         {LinksToKeys(storage, folder->id()), UnreadSegments(storage, folder->id())}) {
      for (const std::string& one : inside ? *inside : std::vector<std::string>()) {
        unread.names.push_back(fmt::format("{}/{}", name, one));
      }
    }
  }
  return unread;
}

namespace {

// Removes all files of a store that no process uses. Its empty folders stay: another process may be
// opening it.
IoStatus RemoveFilesOf(Storage& storage, FileId root, const std::string& name) {
  const IoResult<OpenedFile> folder = Own(storage, storage.OpenFolder(root, name));
  if (!folder) return IoFailed(folder.error());
  const IoResult<OpenedFile> lock =
      Own(storage, storage.OpenFile(folder->id(), "lock", OpenMode::kWriteOrNew));
  if (!lock) return IoFailed(lock.error());
  const IoResult<bool> locked = LockStore(storage, lock->id());
  if (!locked) return IoFailed(locked.error());
  if (!*locked) return {};
  const auto clear = [&](FileId of) -> IoStatus {
    const IoResult<std::vector<std::string>> names = storage.List(of);
    if (!names) return IoFailed(names.error());
    for (const std::string& file : *names) {
      if (file == "lock") continue;
      const IoResult<bool> removed = RemoveFile(storage, of, file);
      if (!removed) return IoFailed(removed.error());
    }
    return storage.SyncFolder(of);
  };
  if (const auto keys = Own(storage, storage.OpenFolder(folder->id(), "keys")); keys) {
    if (const IoStatus cleared = clear(keys->id()); !cleared) return cleared;
  }
  return clear(folder->id());
}

}  // namespace

IoStatus RemoveUnread(Storage& storage, FileId root, const Secret& secret,
                      const UnreadFiles& files) {
  for (const std::string& store : files.stores) {
    if (const IoStatus removed = RemoveFilesOf(storage, root, store); !removed) return removed;
  }
  for (const std::string& path : files.keys) {
    const std::string store = path.substr(0, path.find('/'));
    const IoResult<OpenedFile> folder = Own(storage, storage.OpenFolder(root, store));
    if (!folder) return IoFailed(folder.error());
    const IoResult<OpenedFile> keys = Own(storage, storage.OpenFolder(folder->id(), "keys"));
    if (!keys) return IoFailed(keys.error());
    const IoStatus removed = RemoveUnreadKeys(storage, keys->id(), secret, *ParseStoreName(store));
    if (!removed) return removed;
  }
  for (const std::string& path : files.names) {
    const size_t slash = path.find('/');
    const std::string name = slash == path.npos ? path : path.substr(slash + 1);
    OpenedFile store;
    if (slash != path.npos) {
      IoResult<OpenedFile> opened = Own(storage, storage.OpenFolder(root, path.substr(0, slash)));
      if (!opened) return IoFailed(opened.error());
      store = std::move(*opened);
    }
    const auto removed = RemoveFile(storage, slash == path.npos ? root : store.id(), name);
    if (!removed) return IoFailed(removed.error());
  }
  return storage.SyncFolder(root);
}

}  // namespace kvasir
