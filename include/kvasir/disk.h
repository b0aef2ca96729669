// Disk: options and state of the disk tier, which keeps the cache over restarts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/histogram.h"
#include "kvasir/remote.h"
#include "kvasir/secret_place.h"
#include "kvasir/status.h"

namespace kvasir {

inline constexpr uint64_t kDefaultDiskCapBytes = uint64_t{20} << 30;
inline constexpr uint32_t kMaxDiskBlocks = 1u << 18;  // of a store, whatever its cap

struct DiskOptions {
  // Absent: "kv" in EngineOptions::cache_dir. Where that cannot be used, Load warns and goes on
  // without it; where a folder is named here and cannot be used, Load fails.
  std::optional<std::string> folder;
  // The limit of everything in the folder. Absent: a tenth of what is free or ours, at most 20 GiB.
  std::optional<uint64_t> cap_bytes;
  // What the tier's index and buffers take at most, or little more: fewer buffers, and where
  // cap_bytes is absent a lower cap. Absent: what a cap of 20 GiB needs.
  std::optional<uint64_t> memory_bytes = {};
  uint64_t ttl_hours = 168;  // what has not been used for so long leaves
  // What stays free on the device. Absent: a tenth of it, at most 2 GiB.
  std::optional<uint64_t> reserve_bytes = {};
};

// Counters and state of the disk tier; a snapshot. Bytes of payloads and headers together.
struct TierStats {
  // kFull: it reads, but the device or the cap has no room for a segment.
  enum class State : uint8_t { kOn, kWaiting, kBroken, kFull };
  State state = State::kOn;
  std::string reason;          // why it is not on
  uint64_t missing_bytes = 0;  // where it is full
  std::string folder;
  bool durable = true;  // false: the file system does not promise it (tmpfs, network)
  uint64_t cap_bytes = 0, used_bytes = 0;
  uint64_t blocks = 0, pending_blocks = 0;
  uint64_t written_today_bytes = 0, budget_bytes = 0;
  double load_bytes_per_s = 0;  // of reading and opening; 0: not known yet
  uint64_t read_bytes = 0, written_bytes = 0;
  uint64_t evicted_cap = 0, evicted_space = 0, evicted_ttl = 0, evicted_erase = 0;  // blocks
  uint64_t dropped_buffer = 0, dropped_budget = 0, dropped_failed = 0;              // blocks
  uint64_t fault_read = 0, fault_write = 0, fault_sync = 0, fault_damaged = 0, fault_stalled = 0;
  Histogram read_seconds{kTierTimeBounds};   // of a read: records that lie side by side
  Histogram write_seconds{kTierTimeBounds};  // of a group: making room, writing, syncing
};
const char* ToString(TierStats::State state);  // "on", "waiting", "broken", "full"

// A store of a disk tier's folder: the records of one Identity under one secret.
struct StoreListing {
  std::string store;             // the name of its folder
  std::string model, kv_format;  // as its about.json says; "" where that cannot be read
  uint32_t segments = 0;
  uint64_t blocks = 0, bytes = 0;  // bytes of records
  uint64_t hits = 0;               // blocks that were read for a prompt
  int64_t last_use_unix_s = 0;     // to the hour; 0: unknown
};
// Returns the stores of this folder; needs no key. kNotFound: the folder is missing.
Result<std::vector<StoreListing>> ListDiskStores(const std::string& folder);

struct StoreCheck {
  std::string store;
  std::string model, kv_format;
  uint64_t blocks = 0, bytes = 0;      // of records that were unsealed
  std::vector<std::string> damaged;    // "seg-000012.kvs slot 4: payload"
  std::optional<std::string> skipped;  // why nothing of it was opened
};
// Unseals every record of the stores of this secret. kNotFound: the folder or the secret is
// missing.
Result<std::vector<StoreCheck>> CheckDiskStores(const std::string& folder,
                                                const SecretPlace& place);
// What of the folder nothing reads. Sessions are SessionFile's.
struct UnreadableNames {
  std::vector<std::string> sealed;  // that the secret does not unseal: "0123...", "0123.../keys/.."
  std::vector<std::string> aside;   // set aside earlier, which no secret unseals: "lock.aside-1"
};
// Lists or removes it. Errors: those of CheckDiskStores, and of the disk.
enum class Unreadable : uint8_t { kListed, kRemoved };
Result<UnreadableNames> UnreadableOnDisk(const std::string& folder, const SecretPlace& place,
                                         Unreadable what);
// Returns where a disk tier is that no folder is named for. Absent: there is no cache folder.
std::optional<std::string> DefaultDiskFolder(const std::optional<std::string>& cache_dir);

struct TierFlushed {
  bool durable = true;
  uint64_t blocks = 0, bytes = 0;  // that were written since they were asked for
};
struct TierErased {
  uint64_t blocks = 0, bytes = 0;           // bytes of a fleet's store: as if not compressed
  uint32_t locked_stores = 0;               // of other processes that run: theirs stay
  std::optional<RemoteErased> remote = {};  // where there is a remote tier
  std::optional<Error> error = {};          // why one of two tiers may still have some
};

}  // namespace kvasir
