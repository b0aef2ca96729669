#include "tier/erase_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <functional>

#include "base/hex.h"
#include "tier/key_files.h"
#include "tier/set_aside.h"
#include "tier/spare_file.h"
#include "tier/store_files.h"

namespace kvasir {
namespace {

constexpr uint64_t kMaxOldAuditBytes = uint64_t{1} << 20;  // an earlier version wrote as much
constexpr uint64_t kScanBytes = 64 * 1024;

}  // namespace

std::string IntentName(const EraseIntent& intent) {
  return fmt::format("{}{}-{}", kIntentPrefix, intent.store, intent.key_file_name);
}

namespace {

std::string IntentText(const Secret& secret, const EraseIntent& intent) {
  constexpr std::string_view kPurpose = "kvasir erase";
  const std::string name = IntentName(intent);
  return ToHex(HmacKey(secret).Of(std::as_bytes(std::span(kPurpose)),
                                  std::as_bytes(std::span(name)))) +
         "\n";
}

}  // namespace

IoStatus WriteIntent(Storage& storage, FileId root, const Secret& secret,
                     const EraseIntent& intent) {
  return PublishFile(storage, root, IntentName(intent), IntentText(secret, intent),
                     FileSync::kSynced);
}

IoStatus RemoveIntent(Storage& storage, FileId root, const EraseIntent& intent) {
  const IoStatus removed = storage.Unlink(root, IntentName(intent));
  if (!removed && removed.error() != ENOENT) return removed;
  return storage.SyncFolder(root);
}

IoResult<std::vector<EraseIntent>> ListIntents(Storage& storage, FileId root,
                                               const Secret& secret) {
  const IoResult<std::vector<std::string>> names = storage.List(root);
  if (!names) return IoFailed(names.error());
  std::vector<EraseIntent> intents;
  for (const std::string& name : *names) {
    if (!name.starts_with(kIntentPrefix)) continue;
    const std::string rest = name.substr(kIntentPrefix.size());
    if (rest.size() <= kStoreDigits || rest[kStoreDigits] != '-') continue;
    const EraseIntent intent{rest.substr(0, kStoreDigits), rest.substr(kStoreDigits + 1)};
    if (!ParseStoreName(intent.store) || !IsKeyFileName(intent.key_file_name)) continue;
    const IoResult<std::string> text = ReadSmallFile(storage, root, name, 256);
    if (!text && text.error() == EIO) return IoFailed(EIO);
    if (text && *text == IntentText(secret, intent)) intents.push_back(intent);
  }
  return intents;
}

IoStatus EraseSlots(Storage& storage, FileId file, const SegmentShape& shape,
                    std::span<const uint32_t> slots) {
  for (size_t first = 0, end = 0; first < slots.size(); first = end) {
    for (end = first + 1; end < slots.size() && slots[end] == slots[end - 1] + 1;) ++end;
    const uint64_t count = end - first;
    IoStatus done = EraseBytes(storage, file, shape.header_at(slots[first]),
                               count * shape.record.header_bytes());
    if (done) {
      done = EraseBytes(storage, file, shape.payload_at(slots[first]),
                        count * shape.record.stride_bytes());
    }
    if (!done) return done;
  }
  return {};
}

namespace {

using Leaves = std::function<bool(const OwnerTag&)>;

// Zeros the slots of a segment whose namespaces leave.
IoStatus ZeroSlotsOf(Storage& storage, FileId file, const SegmentHead& head, const Leaves& leaves,
                     StoresErased* erased) {
  const uint64_t header_bytes = head.shape.record.header_bytes();
  const auto per_read = static_cast<uint32_t>(std::max<uint64_t>(1, kScanBytes / header_bytes));
  std::vector<std::byte> headers(per_read * header_bytes);
  std::vector<uint32_t> slots;
  for (uint32_t first = 0; first < head.shape.slots; first += per_read) {
    const uint32_t count = std::min(per_read, head.shape.slots - first);
    const std::span<std::byte> bytes = std::span(headers).first(count * header_bytes);
    const IoStatus done = ReadAll(storage, file, bytes, head.shape.header_at(first));
    if (!done) return done;
    for (uint32_t i = 0; i < count; ++i) {
      const auto record = DecodePublic(bytes.subspan(i * header_bytes).first<kPublicBytes>());
      if (!record || !leaves(record->namespace_id)) continue;
      slots.push_back(first + i);
    }
  }
  if (slots.empty()) return {};
  if (const IoStatus done = EraseSlots(storage, file, head.shape, slots); !done) return done;
  erased->blocks += slots.size();
  erased->bytes += slots.size() * head.shape.record.slot_bytes();
  return storage.SyncData(file);
}

IoStatus ZeroSlotsIn(Storage& storage, FileId folder, const Secret& secret, const StoreId& id,
                     const Leaves& leaves, StoresErased* erased) {
  const IoResult<std::vector<std::string>> names = storage.List(folder);
  if (!names) return IoFailed(names.error());
  const HmacKey head_key = HeadKeyOf(secret);
  for (const std::string& name : *names) {
    const std::optional<uint32_t> segment = ParseSegmentFileName(name);
    if (!segment) continue;
    const IoResult<OpenedFile> file =
        Own(storage, storage.OpenFile(folder, name, OpenMode::kWrite));
    if (!file && IsNoFile(file.error())) continue;  // without its key nothing can be unsealed there
    if (!file) return IoFailed(file.error());
    const auto head = ReadHead(storage, file->id(), head_key, id, *segment);
    if (!head) return IoFailed(head.error());
    if (!*head) continue;  // not of this secret
    const IoStatus zeroed = ZeroSlotsOf(storage, file->id(), **head, leaves, erased);
    if (!zeroed) return zeroed;
  }
  return {};
}

}  // namespace

IoStatus EraseOwner(Storage& storage, FileId folder, FileId keys, const Secret& secret,
                    const StoreId& store, const std::string& key_file_name, StoresErased* erased) {
  IoResult<std::vector<OwnerKey>> loaded = LoadKeys(storage, keys, secret, store);
  if (!loaded) return IoFailed(loaded.error());
  std::optional<OwnerTag> own;
  std::vector<OwnerTag> others;
  for (const OwnerKey& key : *loaded) {
    const bool is_own = KeyFileName(secret, key.owner) == key_file_name;
    if (is_own) {
      own = key.namespace_id;
    } else {
      others.push_back(key.namespace_id);
    }
  }
  WipeKeys(*loaded);
  const auto unread = UnreadKeys(storage, keys, secret, store);
  if (!unread) return IoFailed(unread.error());
  const IoResult<bool> has_links = HasLinkedKeys(storage, folder);
  if (!has_links) return IoFailed(has_links.error());
  const bool some_stay = *has_links || std::ranges::any_of(*unread, [&](const std::string& name) {
    return NameOfOrigin(name) != key_file_name;
  });
  // The slots first: without the key they would look like those that stay.
  if (own && some_stay) {
    const IoStatus zeroed = ZeroSlotsIn(
        storage, folder, secret, store, [&](const OwnerTag& id) { return id == *own; }, erased);
    if (!zeroed) return zeroed;
  }
  const IoResult<bool> removed = RemoveKeyFile(storage, keys, key_file_name);
  if (!removed) return IoFailed(removed.error());
  if (some_stay) return {};
  const auto has_no_key = [&](const OwnerTag& id) {
    return std::ranges::find(others, id) == others.end();
  };
  return ZeroSlotsIn(storage, folder, secret, store, has_no_key, erased);
}

namespace {

// Tells whether the entry is not a store: it is gone, a file, or a link.
bool IsNoStore(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP; }

// Tells whether keys of a store are the owner's: its own, or what had that name and was set aside.
IoResult<bool> HasKey(Storage& storage, FileId keys, const std::string& key_file_name) {
  const IoResult<std::vector<std::string>> names = storage.List(keys);
  if (!names) return IoFailed(names.error());
  return std::ranges::any_of(
      *names, [&](const std::string& name) { return NameOfOrigin(name) == key_file_name; });
}

IoStatus EraseInStore(Storage& storage, FileId root, const std::string& store, const Secret& secret,
                      const std::string& key_file_name, EraseScope scope, StoresErased* erased) {
  const IoResult<OpenedFile> folder = Own(storage, storage.OpenFolder(root, store));
  if (!folder) return IsNoStore(folder.error()) ? IoStatus{} : IoFailed(folder.error());
  const IoResult<OpenedFile> keys = Own(storage, storage.OpenFolder(folder->id(), "keys"));
  if (!keys) return IsNoStore(keys.error()) ? IoStatus{} : IoFailed(keys.error());
  const IoResult<bool> has_key = HasKey(storage, keys->id(), key_file_name);
  if (!has_key) return IoFailed(has_key.error());
  if (!*has_key && scope == EraseScope::kStoresWithKey) return {};
  const IoResult<OpenedFile> lock =
      Own(storage, storage.OpenFile(folder->id(), "lock", OpenMode::kWriteOrNew));
  if (!lock) return IoFailed(lock.error());
  const IoResult<bool> locked = LockStore(storage, lock->id());
  if (!locked) return IoFailed(locked.error());
  if (!*locked) {
    erased->locked_stores += *has_key ? 1 : 0;
    return {};
  }
  return EraseOwner(storage, folder->id(), keys->id(), secret, *ParseStoreName(store),
                    key_file_name, erased);
}

}  // namespace

bool MayHaveKeyInStores(Storage& storage, FileId root, const std::string& key_file_name) {
  const IoResult<std::vector<std::string>> names = storage.List(root);
  if (!names) return true;
  return std::ranges::any_of(*names, [&](const std::string& name) {
    if (!ParseStoreName(name)) return false;
    const IoResult<OpenedFile> folder = Own(storage, storage.OpenFolder(root, name));
    if (!folder) return !IsNoStore(folder.error());
    const IoResult<OpenedFile> keys = Own(storage, storage.OpenFolder(folder->id(), "keys"));
    if (!keys) return !IsNoStore(keys.error());
    return HasKey(storage, keys->id(), key_file_name).value_or(true);
  });
}

IoResult<StoresErased> EraseInStores(Storage& storage, FileId root, const Secret& secret,
                                     const std::string& key_file_name,
                                     const std::string& except_store, EraseScope scope) {
  const IoResult<std::vector<std::string>> names = storage.List(root);
  if (!names) return IoFailed(names.error());
  StoresErased erased;
  std::optional<int> error;
  for (const std::string& name : *names) {
    if (!ParseStoreName(name) || name == except_store) continue;
    const IoStatus done = EraseInStore(storage, root, name, secret, key_file_name, scope, &erased);
    if (!done) error = done.error();  // the others are erased all the same
  }
  if (error) return IoFailed(*error);
  return erased;
}

std::string AuditLine(const std::string& key_file_name, int64_t unix_s, const StoresErased& erased,
                      EraseFinish finish) {
  return fmt::format(
      R"({{"erased":"{}","unix_s":{},"blocks":{},"bytes":{},"locked_stores":{},"finished_later":{}}})",
      key_file_name, unix_s, erased.blocks, erased.bytes, erased.locked_stores,
      finish == EraseFinish::kLater);
}

IoStatus AppendAudit(Storage& storage, FileId root, const std::string& line) {
  const std::string name(kAuditName);
  IoResult<std::string> text = ReadSmallFile(storage, root, name, kMaxOldAuditBytes);
  if (!text && text.error() != ENOENT) {
    if (!IsNoFile(text.error())) return IoFailed(text.error());
    if (const auto aside = SetAside(storage, root, name); !aside) return IoFailed(aside.error());
  }
  std::string kept = text ? std::move(*text) : std::string();
  if (kept.size() + line.size() + 1 > kMaxAuditBytes) {
    const size_t end = kept.find('\n', kept.size() - std::min(kept.size(), kMaxAuditBytes / 2));
    kept.erase(0, end == kept.npos ? kept.size() : end + 1);
  }
  // Through a new file: a crash leaves the old lines or all of them.
  const uint64_t end = kept.size();
  kept += line + "\n";
  const IoStatus done = PublishFile(storage, root, name, kept, FileSync::kSynced);
  if (done || !IsFull(done.error())) return done;
  // On a full device in place: it needs no more than one line. A crash may cut that one.
  const IoResult<OpenedFile> file =
      Own(storage, storage.OpenFile(root, name, OpenMode::kWriteOrNew));
  if (!file) return IoFailed(file.error());
  const IoResult<FileFacts> facts = storage.FactsOf(file->id());
  if (!facts) return IoFailed(facts.error());
  const auto added = std::as_bytes(std::span(kept)).subspan(end);
  const IoStatus written = WriteAll(storage, file->id(), added, facts->bytes);
  return written ? storage.SyncData(file->id()) : written;
}

}  // namespace kvasir
