// What an erase leaves in a tier's folder while it runs and when it is done, and how it zeros slots
// in stores that are not open.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/secret.h"
#include "tier/forget_intent.h"
#include "tier/segment.h"
#include "tier/storage.h"

namespace kvasir {

inline constexpr std::string_view kIntentPrefix = "erase-", kAuditName = "audit.jsonl";

// Zeros these slots, in ascending order: header and payload. Neighbours go together, for a call
// costs more than what it zeros.
IoStatus EraseSlots(Storage& storage, FileId file, const SegmentShape& shape,
                    std::span<const uint32_t> slots);

// The intent of an erase: a file of the tier's folder from before it begins until it is done. It is
// of the store whose process began it: while that store is locked, no other process
// finishes it.
struct EraseIntent {
  std::string store, key_file_name;
};
std::string IntentName(const EraseIntent& intent);
IoStatus WriteIntent(Storage& storage, FileId root, const Secret& secret,
                     const EraseIntent& intent);
IoStatus RemoveIntent(Storage& storage, FileId root, const EraseIntent& intent);
// Lists the intents of this secret.
IoResult<std::vector<EraseIntent>> ListIntents(Storage& storage, FileId root, const Secret& secret);
// What was erased.
struct StoresErased {
  uint64_t blocks = 0, bytes = 0;
  uint32_t locked_stores = 0;  // that have the owner's key and belong to others that run
};
// Erases in one store, which the caller has locked: the key file and the owner's slots, then also
// all slots whose headers name a namespace without a key file, unless some key file cannot be
// unsealed: they may be its.
IoStatus EraseOwner(Storage& storage, FileId folder, FileId keys, const Secret& secret,
                    const StoreId& store, const std::string& key_file_name, StoresErased* erased);
// Returns whether a store of the folder has a key file of the owner, also one that was set aside.
// True where that cannot be found out.
bool MayHaveKeyInStores(Storage& storage, FileId root, const std::string& key_file_name);
enum class EraseScope : uint8_t {
  kStoresWithKey,  // only stores that have the owner's key
  kAllStores,      // all: the key may be gone already
};
// Removes an owner's key file from all stores except `except_store`, and zeros the slots there that
// no key unseals any more.
IoResult<StoresErased> EraseInStores(Storage& storage, FileId root, const Secret& secret,
                                     const std::string& key_file_name,
                                     const std::string& except_store, EraseScope scope);

enum class EraseFinish : uint8_t { kFirstTry, kLater };
std::string AuditLine(const std::string& key_file_name, int64_t unix_s, const StoresErased& erased,
                      EraseFinish finish);
// The most bytes of audit.jsonl. While it is written there are two of them.
inline constexpr uint64_t kMaxAuditBytes = uint64_t{512} << 10;
// The most bytes of a draft of the audit, which lies beside the old one until it takes its name,
// and of intents and an about.json, which may come with it.
inline constexpr uint64_t kTierDraftBytes =
    kMaxAuditBytes + kMaxForgetIntentBytes + (uint64_t{64} << 10);
// Adds a line to audit.jsonl; the older half goes when it would have more than kMaxAuditBytes.
IoStatus AppendAudit(Storage& storage, FileId root, const std::string& line);

}  // namespace kvasir
