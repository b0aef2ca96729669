#include "tier/store_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/hex.h"
#include "base/result.h"
#include "base/sizes.h"
#include "base/system_error.h"
#include "tier/erase_files.h"
#include "tier/set_aside.h"
#include "tier/spare_file.h"

namespace kvasir {
namespace {

constexpr std::string_view kTagName = "CACHEDIR.TAG", kSegmentSuffix = ".kvs";
constexpr std::string_view kTagText =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# Kvasir keeps encrypted KV blocks here. They can be computed again: backups may leave them "
    "out.\n";
constexpr uint64_t kMaxTagBytes = 4096;
constexpr int kLockTries = 10;
constexpr uint64_t kLockPauseMs = 5;

Digest Purpose(const Secret& secret, std::string_view purpose, std::span<const std::byte> rest) {
  return HmacKey(secret).Of(std::as_bytes(std::span(purpose)), rest);
}

bool IsOurName(std::string_view name) {
  return name == "lock" || name == kAuditName || name == kTagName || ParseStoreName(name) ||
         IsTierDraft(name) || name.starts_with(kIntentPrefix) || name.starts_with(kRowsName) ||
         name == kRowsLockName || name == kRowsKeysName || NameBeforeAside(name) ||
         name == kSpareName || name == kRowsSpareName || name == "lost+found";
}

// Returns whether a folder of this content was Kvasir's, whatever became of its marker.
bool ShowsKvasir(const std::string& name) {
  return ParseStoreName(name) || name.starts_with(kRowsName) || name == kRowsLockName;
}

// Returns whether it is ours except for a few bytes; other programs have markers with the same
// beginning.
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

// Removes drafts that a crash left. In a folder that others use too, only old ones are known to be
// that.
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

}  // namespace kvasir
