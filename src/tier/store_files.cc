#include "tier/store_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

#include "base/fault.h"
#include "base/hex.h"
#include "base/result.h"
#include "base/sizes.h"
#include "base/system_error.h"
#include "tier/set_aside.h"
#include "tier/spare_file.h"

namespace kvasir {
namespace {

constexpr std::string_view kTagName = "CACHEDIR.TAG", kAuditName = "audit.jsonl",
                           kSegmentSuffix = ".kvs";
constexpr std::string_view kTagText =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# Kvasir keeps encrypted KV blocks here. They can be computed again: backups may leave them "
    "out.\n";
constexpr uint64_t kMaxOldAuditBytes = uint64_t{1} << 20;  // an earlier version wrote as much
constexpr uint64_t kMaxTagBytes = 4096;
constexpr uint64_t kScanBytes = 64 * 1024;
constexpr int kLockTries = 10;
constexpr uint64_t kLockPauseMs = 5;

bool IsKeyFileName(std::string_view name) {
  return name.size() == 2 * sizeof(Digest) && IsHex(name);
}

Digest Purpose(const Secret& secret, std::string_view purpose, std::span<const std::byte> rest) {
  return HmacKey(secret).Of(std::as_bytes(std::span(purpose)), rest);
}

bool IsOurName(std::string_view name) {
  return name == "lock" || name == kAuditName || name == kTagName || ParseStoreName(name) ||
         IsTierDraft(name) || name.starts_with(kIntentPrefix) || name.starts_with(kRowsName) ||
         name == kRowsLockName || name == kRowsKeysName || NameBeforeAside(name) ||
         name == kSpareName || name == kRowsSpareName || name == "lost+found";
}

// Whether a folder of this content was Kvasir's, whatever became of its marker.
bool ShowsKvasir(const std::string& name) {
  return ParseStoreName(name) || name.starts_with(kRowsName) || name == kRowsLockName;
}

// Ours except for a few bytes; other programs have markers with the same beginning.
bool IsDamagedTag(std::string_view tag) {
  constexpr int kFew = 4;
  int other = 0;
  for (size_t i = 0; i < std::min(tag.size(), kTagText.size()); ++i) other += tag[i] != kTagText[i];
  return tag.size() == kTagText.size() && other <= kFew;
}

Status TagFolder(Storage& storage, FileId root, const std::string& path) {
  const std::string name(kTagName);
  const IoResult<std::string> tag = ReadSmallFile(storage, root, name, kMaxTagBytes);
  if (tag && *tag == kTagText) return {};
  const IoResult<std::vector<std::string>> names = storage.List(root);
  if (!names) return FailErrno(names.error(), "cannot list {}", path);
  const bool is_ours = std::ranges::any_of(*names, ShowsKvasir) ||
                       (std::ranges::all_of(*names, IsOurName) && (!tag || IsDamagedTag(*tag)));
  // What a crash or a full disk left of the marker.
  const bool is_begun = tag && kTagText.starts_with(*tag);
  const bool is_empty = std::ranges::all_of(*names, IsOurName) && (is_begun || !tag);
  if (!is_ours && !is_empty) {
    return Fail(Code::kInvalidArgument,
                "{} holds files that are not Kvasir's; name an empty or a new folder", path);
  }
  // In a folder that cannot be written to, what comes next says so.
  if (storage.FactsOf(root, name) && !is_begun && !SetAside(storage, root, name)) return {};
  (void)PublishFile(storage, root, name, kTagText, FileSync::kSynced);
  return {};
}

constexpr int64_t kDraftLifeS = 3600;

// Drafts that a crash left. In a folder that others use too, only old ones are known to be that.
enum class DraftAge : uint8_t { kAny, kOld };
void RemoveDrafts(Storage& storage, FileId folder, DraftAge age) {
  const IoResult<std::vector<std::string>> names = storage.List(folder);
  for (const std::string& name : names ? *names : std::vector<std::string>()) {
    if (!IsTierDraft(name)) continue;
    const IoResult<FileFacts> facts = storage.FactsOf(folder, name);
    const bool is_old = facts && facts->changed_unix_s + kDraftLifeS < storage.UnixS();
    if (is_old || age == DraftAge::kAny) (void)storage.Unlink(folder, name);
  }
}

}  // namespace

StoreId StoreIdOf(const Secret& secret, const Digest& identity) {
  const Digest digest = Purpose(secret, "kvasir store", std::as_bytes(std::span(identity)));
  StoreId id;
  std::memcpy(id.data(), digest.data(), id.size());
  return id;
}
HmacKey HeadKeyOf(const Secret& secret) { return HmacKey(Purpose(secret, "kvasir segment", {})); }

std::string SegmentFileName(uint32_t segment) {
  return fmt::format("{}{:06}{}", kSegmentPrefix, segment, kSegmentSuffix);
}
std::optional<uint32_t> ParseSegmentFileName(std::string_view name) {
  if (!name.starts_with(kSegmentPrefix) || !name.ends_with(kSegmentSuffix)) return std::nullopt;
  const std::string_view digits = name.substr(
      kSegmentPrefix.size(), name.size() - kSegmentPrefix.size() - kSegmentSuffix.size());
  const std::optional<uint64_t> number = ParseUint(digits);
  if (!number || *number > UINT32_MAX || SegmentFileName(static_cast<uint32_t>(*number)) != name) {
    return std::nullopt;
  }
  return static_cast<uint32_t>(*number);
}
std::optional<StoreId> ParseStoreName(std::string_view name) {
  return FromHex<sizeof(StoreId)>(name, HexCase::kLower);
}

Result<OpenedFile> OpenTierFolder(Storage& storage, const std::string& path) {
  if (path.empty()) return Fail(Code::kInvalidArgument, "the folder's name is empty");
  IoResult<OpenedFile> root = Own(storage, storage.OpenRoot(path));
  if (!root && root.error() == ELOOP) {
    return Fail(Code::kInvalidArgument, "{} is a symbolic link; name the folder that it leads to",
                path);
  }
  if (!root && root.error() == ENOTDIR) {
    return Fail(Code::kInvalidArgument, "{} is not a folder", path);
  }
  if (!root) return FailErrno(root.error(), "cannot open {}", path);
  const IoResult<FileFacts> facts = storage.FactsOf(root->id());
  if (!facts) return FailErrno(facts.error(), "cannot inspect {}", path);
  if (!facts->is_private) {
    return Fail(Code::kPermissionDenied,
                "other users can write to {}, or own it; chmod 700 it, or name another "
                "folder",
                path);
  }
  KV_TRY(TagFolder(storage, root->id(), path));
  RemoveDrafts(storage, root->id(), DraftAge::kOld);
  return std::move(*root);
}

IoResult<OpenedFile> LockTierFolder(Storage& storage, FileId root) {
  IoResult<OpenedFile> lock = OpenLockFile(storage, root, "lock");
  if (!lock) return lock;
  const IoResult<bool> locked = storage.TryLock(lock->id());
  if (!locked) return IoFailed(locked.error());
  if (!*locked) return IoFailed(EWOULDBLOCK);
  return lock;
}

IoResult<bool> LockStore(Storage& storage, FileId lock) {
  for (int tries = 1;; ++tries) {
    const IoResult<bool> locked = storage.TryLock(lock);
    if (!locked || *locked || tries == kLockTries) return locked;
    storage.Pause(kLockPauseMs);
  }
}

Result<std::optional<StoreFiles>> OpenStoreFiles(Storage& storage, OpenedFile root,
                                                 const StoreId& id) {
  const std::string name = ToHex(id);
  StoreFiles files;
  files.id = id;
  IoResult<OpenedFile> folder = OpenOrMake(storage, root.id(), name);
  if (!folder) return FailErrno(folder.error(), "cannot open the store {}", name);
  IoResult<OpenedFile> lock = OpenLockFile(storage, folder->id(), "lock");
  if (!lock) return FailErrno(lock.error(), "cannot open the lock of {}", name);
  const IoResult<bool> locked = LockStore(storage, lock->id());
  if (!locked) return FailErrno(locked.error(), "cannot lock the store {}", name);
  if (!*locked) return std::optional<StoreFiles>();
  IoResult<OpenedFile> keys = OpenOrMake(storage, folder->id(), "keys");
  if (!keys) return FailErrno(keys.error(), "cannot open the keys of {}", name);
  // The folders may be from before a crash that came before their names were durable.
  IoStatus synced = storage.SyncFolder(root.id());
  if (synced) synced = storage.SyncFolder(folder->id());
  if (!synced) return FailErrno(synced.error(), "cannot sync the store {}", name);
  RemoveDrafts(storage, folder->id(), DraftAge::kAny);
  RemoveDrafts(storage, keys->id(), DraftAge::kAny);
  files.root = std::move(root);
  files.folder = std::move(*folder);
  files.keys = std::move(*keys);
  files.lock = std::move(*lock);
  return std::optional<StoreFiles>(std::move(files));
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
    auto key = OpenKeyFile(secret, store, name, std::as_bytes(std::span(*file)));
    if (!key) continue;
    if (KeyFileName(secret, key->owner) == name) loaded.push_back(*key);
    WipeKeys({&*key, 1});
  }
  return loaded;
}

namespace {

// Whether the file is a key file that this secret opens. An error of the device is returned: it
// says nothing about the file.
IoResult<bool> KeyFileOpens(Storage& storage, FileId keys, const Secret& secret,
                            const StoreId& store, const std::string& name) {
  const IoResult<std::string> file = ReadSmallFile(storage, keys, name, kKeyFileBytes);
  if (!file) {
    if (file.error() == ENOENT || IsNoFile(file.error())) return false;
    return IoFailed(file.error());
  }
  auto key = OpenKeyFile(secret, store, name, std::as_bytes(std::span(*file)));
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
      const IoResult<bool> opens = KeyFileOpens(storage, keys, secret, store, name);
      if (!opens) return IoFailed(opens.error());
      if (*opens) continue;
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
  const IoResult<bool> opens = KeyFileOpens(storage, keys, secret, store, old);
  if (!opens) return IoFailed(opens.error());
  if (storage.FactsOf(keys, old) && !*opens) {
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
  const IoResult<bool> opens = KeyFileOpens(storage, keys, secret, store, name);
  if (!opens) return IoFailed(opens.error());
  const IoResult<bool> removed =
      *opens ? RemoveAsidesOf(storage, keys, name) : RemoveKeyFile(storage, keys, name);
  return removed ? storage.SyncFolder(keys) : IoFailed(removed.error());
}

IoResult<std::optional<SegmentHead>> ReadHead(Storage& storage, FileId file,
                                              const HmacKey& head_key, const StoreId& store,
                                              uint32_t segment) {
  const IoResult<FileFacts> facts = storage.FactsOf(file);
  if (!facts) return IoFailed(facts.error());
  std::optional<SegmentHead> head;
  if (facts->kind != FileFacts::Kind::kFile || facts->bytes < kTierPageBytes) return head;
  std::array<std::byte, kHeadBytes> bytes;
  if (const IoStatus read = ReadAll(storage, file, bytes, 0); !read) return IoFailed(read.error());
  head = DecodeHead(head_key, bytes);
  if (head && (head->store != store || head->segment != segment ||
               head->shape.segment_bytes != facts->bytes)) {
    head.reset();
  }
  return head;
}

bool HasOtherVersion(Storage& storage, FileId file) {
  std::array<std::byte, kHeadBytes> bytes;
  return ReadAll(storage, file, bytes, 0).has_value() && IsHeadOfOtherVersion(bytes);
}

std::string IntentName(const EraseIntent& intent) {
  return fmt::format("{}{}-{}", kIntentPrefix, intent.store, intent.key_file_name);
}

namespace {

std::string IntentText(const Secret& secret, const EraseIntent& intent) {
  const std::string name = IntentName(intent);
  return ToHex(Purpose(secret, "kvasir erase", std::as_bytes(std::span(name)))) + "\n";
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

IoResult<bool> IsStoreLocked(Storage& storage, FileId root, const std::string& store) {
  const IoResult<OpenedFile> folder = Own(storage, storage.OpenFolder(root, store));
  if (!folder && folder.error() == ENOENT) return false;
  if (!folder) return IoFailed(folder.error());
  const IoResult<OpenedFile> lock =
      Own(storage, storage.OpenFile(folder->id(), "lock", OpenMode::kWrite));
  if (!lock && lock.error() == ENOENT) return false;
  if (!lock) return IoFailed(lock.error());
  return storage.IsLocked(lock->id());
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
    if (!file && IsNoFile(file.error())) continue;  // without its key nothing behind a link opens
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

// The entry is not a store: it is gone, a file, or a link.
bool IsNoStore(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP; }

IoStatus EraseInStore(Storage& storage, FileId root, const std::string& store, const Secret& secret,
                      const std::string& key_file_name, EraseScope scope, StoresErased* erased) {
  const IoResult<OpenedFile> folder = Own(storage, storage.OpenFolder(root, store));
  if (!folder) return IsNoStore(folder.error()) ? IoStatus{} : IoFailed(folder.error());
  const IoResult<OpenedFile> keys = Own(storage, storage.OpenFolder(folder->id(), "keys"));
  if (!keys) return IsNoStore(keys.error()) ? IoStatus{} : IoFailed(keys.error());
  const bool has_key = storage.FactsOf(keys->id(), key_file_name).has_value();
  if (!has_key && scope == EraseScope::kStoresWithKey) return {};
  const IoResult<OpenedFile> lock =
      Own(storage, storage.OpenFile(folder->id(), "lock", OpenMode::kWriteOrNew));
  if (!lock) return IoFailed(lock.error());
  const IoResult<bool> locked = LockStore(storage, lock->id());
  if (!locked) return IoFailed(locked.error());
  if (!*locked) {
    erased->locked_stores += has_key ? 1 : 0;
    return {};
  }
  return EraseOwner(storage, folder->id(), keys->id(), secret, *ParseStoreName(store),
                    key_file_name, erased);
}

}  // namespace

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
