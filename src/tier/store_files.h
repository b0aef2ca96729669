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
#include "tier/segment.h"
#include "tier/storage.h"

namespace kvasir {

inline constexpr std::string_view kSegmentPrefix = "seg-", kKeysName = "keys";
inline constexpr size_t kStoreDigits = 2 * sizeof(StoreId);  // of a store's name
inline constexpr std::string_view kRowsName = "sessions.db", kRowsLockName = "sessions.lock",
                                  kRowsKeysName = "keys";

// Returns the first 16 bytes of HMAC-SHA-256(secret, "kvasir store" || identity). Its hex names the
// folder.
StoreId StoreIdOf(const Secret& secret, const Digest& identity);
// Returns the key of all heads of segments of a secret.
HmacKey HeadKeyOf(const Secret& secret);
std::string SegmentFileName(uint32_t segment);
std::optional<uint32_t> ParseSegmentFileName(std::string_view name);
// Returns the store that a folder is named after; absent: the name is not a store's.
std::optional<StoreId> ParseStoreName(std::string_view name);

// Opens the tier's folder, makes it where it is missing, and marks it as a cache. Refuses one that
// others may write to, and one that holds something else.
Result<OpenedFile> OpenTierFolder(Storage& storage, const std::string& path);

// Takes the folder's lock, for as long as the result lives; EWOULDBLOCK while another process has
// it. A process that lets the folder grow holds it, so that the cap holds at every instant.
IoResult<OpenedFile> LockTierFolder(Storage& storage, FileId root);

// Takes a store's lock. A process that only looks whether it is locked, or takes a segment of the
// store, has it for a moment; false: another one has it for longer.
IoResult<bool> LockStore(Storage& storage, FileId lock);
// The open folders of a store, exclusively locked while it exists.
struct StoreFiles {
  OpenedFile root, folder, keys, lock;
  StoreId id{};
};
// Opens a store. Absent: another process has it. `root`: the tier's folder, which it takes over.
Result<std::optional<StoreFiles>> OpenStoreFiles(Storage& storage, OpenedFile root,
                                                 const StoreId& id);

// Returns whether a process has the store of this name open.
IoResult<bool> IsStoreLocked(Storage& storage, FileId root, const std::string& store);

// Reads the head of an open segment of a store. Absent where the file is not one of ours, of this
// version.
IoResult<std::optional<SegmentHead>> ReadHead(Storage& storage, FileId file,
                                              const HmacKey& head_key, const StoreId& store,
                                              uint32_t segment);
// Returns whether a file without such a head is a segment of another version.
bool HasOtherVersion(Storage& storage, FileId file);
}  // namespace kvasir
