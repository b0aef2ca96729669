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

inline constexpr std::string_view kSegmentPrefix = "seg-", kKeysName = "keys",
                                  kIntentPrefix = "erase-";
inline constexpr size_t kStoreDigits = 2 * sizeof(StoreId);  // of a store's name
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

// A store's lock. Who only looks whether it is locked, or takes a segment of the store, has it for
// a moment; false: somebody has it for longer.
IoResult<bool> LockStore(Storage& storage, FileId lock);
// The open folders of a store, exclusively locked while it exists.
struct StoreFiles {
  OpenedFile root, folder, keys, lock;
  StoreId id{};
};
// Absent: another process has it. `root`: the tier's folder, which it takes over.
Result<std::optional<StoreFiles>> OpenStoreFiles(Storage& storage, OpenedFile root,
                                                 const StoreId& id);

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

// The intent of an erase: a file of the tier's folder from before it begins until it is done. It is
// of the store whose process began it: while that store is locked, nobody else finishes it.
struct EraseIntent {
  std::string store, key_file_name;
};
std::string IntentName(const EraseIntent& intent);
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

}  // namespace kvasir
