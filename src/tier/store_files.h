// The files of a tier's folder: DIR/<store>/{lock, about.json, keys/, seg-NNNNNN.kvs} of one store
// for each Identity and secret, and beside them DIR/{CACHEDIR.TAG, lock, audit.jsonl, erase-*} and,
// of SealedRows, DIR/{sessions.db, sessions.db-wal, sessions.lock, keys/}.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/secret.h"
#include "kvasir/status.h"
#include "tier/forget_intent.h"
#include "tier/owner_keys.h"
#include "tier/segment.h"
#include "tier/storage.h"

namespace kvasir {

inline constexpr std::string_view kSegmentPrefix = "seg-";
inline constexpr std::string_view kRowsName = "sessions.db", kRowsLockName = "sessions.lock",
                                  kRowsKeysName = "keys";

// HMAC-SHA-256(secret, "kvasir store" || identity), its first 16 bytes. Its hex names the folder.
StoreId StoreIdOf(const Secret& secret, const Digest& identity);
// The key of all heads of segments of a secret.
HmacKey HeadKeyOf(const Secret& secret);
std::string SegmentFileName(uint32_t segment);
std::optional<uint32_t> ParseSegmentFileName(std::string_view name);
// The store that a folder is named after; absent: the name is not a store's.
std::optional<StoreId> ParseStoreName(std::string_view name);

// Opens the tier's folder, makes it where it is missing, and marks it as a cache. Refuses one that
// others may write to, and one that holds something else.
Result<OpenedFile> OpenTierFolder(Storage& storage, const std::string& path);

// The folder's lock, for as long as the result lives; EWOULDBLOCK while another process has it.
// Whoever lets the folder grow holds it, so that the cap holds at every instant.
IoResult<OpenedFile> LockTierFolder(Storage& storage, FileId root);

// The open folders of a store, exclusively locked while it exists.
struct StoreFiles {
  OpenedFile root, folder, keys, lock;
  StoreId id{};
};
// Absent: another process has it. `root`: the tier's folder, which it takes over.
Result<std::optional<StoreFiles>> OpenStoreFiles(Storage& storage, OpenedFile root,
                                                 const StoreId& id);

// Gives what lies under this name, file or folder, another one beside it, logs it, and returns that
// name: what cannot be read is in nobody's way, and stays.
IoResult<std::string> SetAside(Storage& storage, FileId folder, const std::string& name);
// The name under which SetAside found it; absent: it never was set aside.
std::optional<std::string> NameBeforeAside(std::string_view name);
// False: there is no file of this name. A folder of this name stays.
IoResult<bool> RemoveFile(Storage& storage, FileId folder, const std::string& name);

// The folder's sub-folder; made, and its name made durable, where it is missing. What else has the
// name is set aside.
IoResult<OpenedFile> OpenOrMake(Storage& storage, FileId folder, const std::string& name);
// A file to lock, made where it is missing. What is not a file is set aside.
IoResult<OpenedFile> OpenLockFile(Storage& storage, FileId folder, const std::string& name);

// Links that lay where stores, their keys or those of SealedRows belong and were set aside, and
// links to keys that no start has seen yet, by their paths in the tier's folder. Nobody follows
// them, and what they lead to may have anybody's blocks, or open anybody's rows.
IoResult<std::vector<std::string>> ListLinks(Storage& storage, FileId root);
// Whether a store has such a link to keys.
IoResult<bool> HasLinkedKeys(Storage& storage, FileId folder);

// All keys whose files open. A file that does not open is left out; a read that fails is an error.
IoResult<std::vector<OwnerKey>> LoadKeys(Storage& storage, FileId keys, const Secret& secret,
                                         const StoreId& store);
// Files in a folder of keys that this secret does not open for this store.
IoResult<std::vector<std::string>> UnreadKeys(Storage& storage, FileId keys, const Secret& secret,
                                              const StoreId& store);
IoStatus RemoveUnreadKeys(Storage& storage, FileId keys, const Secret& secret,
                          const StoreId& store);
// Writes the file and makes its name durable. One that is there and does not open is set aside.
IoStatus WriteKeyFile(Storage& storage, FileId keys, const Secret& secret, const StoreId& store,
                      const OwnerKey& key);
// Makes the file's absence durable, and that of what was set aside for it. False: there was none.
IoResult<bool> RemoveKeyFile(Storage& storage, FileId keys, const std::string& name);
// Only what was set aside for it, and the file itself where it does not open.
IoStatus RemoveUnreadKeysOf(Storage& storage, FileId keys, const Secret& secret,
                            const StoreId& store, const std::string& name);

// The head of an open segment of a store. Absent where the file is not one of ours, of this
// version.
IoResult<std::optional<SegmentHead>> ReadHead(Storage& storage, FileId file,
                                              const HmacKey& head_key, const StoreId& store,
                                              uint32_t segment);
// Whether a file without such a head is a segment of another version.
bool HasOtherVersion(Storage& storage, FileId file);
// Zeros these slots, in ascending order: header and payload. Neighbours go together, for a call
// costs more than what it zeros.
IoStatus EraseSlots(Storage& storage, FileId file, const SegmentShape& shape,
                    std::span<const uint32_t> slots);

// What this secret does not open: stores without a segment or a key of it, keys of other stores,
// intents of erases, and what was set aside. Not the file of SealedRows, set aside or not, nor
// stores that are locked.
struct UnreadFiles {
  std::vector<std::string> stores;
  std::vector<std::string> keys;  // "store/keys/name"
  // Of the folder itself; as "store/name" links to keys, and segments that are links or of another
  // version.
  std::vector<std::string> names;
  uint64_t bytes = 0;  // of the stores' segments
  bool empty() const { return stores.empty() && keys.empty() && names.empty(); }
};
IoResult<UnreadFiles> ListUnread(Storage& storage, FileId root, const Secret& secret);
// Removes them. What somebody locks meanwhile stays.
IoStatus RemoveUnread(Storage& storage, FileId root, const Secret& secret,
                      const UnreadFiles& files);
// Removes files of SealedRows that were set aside.
IoStatus RemoveAsidesOfRows(Storage& storage, FileId root);

// The intent of an erase: a file of the tier's folder from before it begins until it is done. It is
// of the store whose process began it: while that store is locked, nobody else finishes it.
struct EraseIntent {
  std::string store, key_file_name;
};
IoStatus WriteIntent(Storage& storage, FileId root, const Secret& secret,
                     const EraseIntent& intent);
IoStatus RemoveIntent(Storage& storage, FileId root, const EraseIntent& intent);
// Those of this secret.
IoResult<std::vector<EraseIntent>> ListIntents(Storage& storage, FileId root, const Secret& secret);
IoResult<bool> IsStoreLocked(Storage& storage, FileId root, const std::string& store);

// Removes an owner's key file from all stores but `except`, and zeros the slots there that no key
// opens any more.
struct StoresErased {
  uint64_t blocks = 0, bytes = 0;
  uint32_t locked_stores = 0;  // that have the owner's key and belong to others that run
};
// In one store, locked by the caller: the key file and the owner's slots. Then also all slots whose
// headers name a namespace without a key file, unless some key file does not open: they may be its.
IoStatus EraseOwner(Storage& storage, FileId folder, FileId keys, const Secret& secret,
                    const StoreId& store, const std::string& key_file_name, StoresErased* erased);
enum class EraseScope : uint8_t {
  kStoresWithKey,  // only stores that have the owner's key
  kAllStores,      // all: the key may be gone already
};
IoResult<StoresErased> EraseInStores(Storage& storage, FileId root, const Secret& secret,
                                     const std::string& key_file_name,
                                     const std::string& except_store, EraseScope scope);

enum class EraseFinish : uint8_t { kFirstTry, kLater };
std::string AuditLine(const std::string& key_file_name, int64_t unix_s, const StoresErased& erased,
                      EraseFinish finish);
// One line more in audit.jsonl; the older half goes when it would have more than this. While it is
// written there are two of them.
inline constexpr uint64_t kMaxAuditBytes = uint64_t{512} << 10;
// Of a draft of the audit, which lies beside the old one until it takes its name, and of intents
// and an about.json, which may come with it.
inline constexpr uint64_t kTierDraftBytes =
    kMaxAuditBytes + kMaxForgetIntentBytes + (uint64_t{64} << 10);
IoStatus AppendAudit(Storage& storage, FileId root, const std::string& line);

// Room of the device that is kept for erases, which write before they free anything: files of the
// tier's folder, of the tier and of SealedRows. On a full device they are given back first, and
// kept again behind the erase.
inline constexpr std::string_view kSpareName = "spare", kRowsSpareName = "sessions.spare";
inline constexpr uint64_t kSpareBytes = uint64_t{64} << 10;  // beside the intent of a forget
// The size of the spare file; 0 where it is missing.
uint64_t SpareOf(Storage& storage, FileId root, std::string_view name);
// At least so many bytes, or as many as the device has; unchanged where the folder's cap is full.
// REQUIRES: the folder's lock.
void KeepSpare(Storage& storage, FileId root, std::string_view name, uint64_t bytes,
               uint64_t cap_bytes);
// Removes the spare file. False: it was missing or stays.
bool GiveSpare(Storage& storage, FileId root, std::string_view name);
// Whether a call failed because the device is full.
bool IsFull(int error);

}  // namespace kvasir
