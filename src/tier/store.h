// Store: what the parts of a disk tier share: the index, the slots, the buffers, and the lock.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/mutex.h"
#include "tier/disk_tier_options.h"
#include "tier/error_window.h"
#include "tier/owner_keys.h"
#include "tier/record_buffers.h"
#include "tier/record_index.h"
#include "tier/segment_table.h"
#include "tier/storage.h"
#include "tier/store_files.h"
#include "tier/tier.h"

namespace kvasir {

// Whether records can be found and stored, and where not, why.
struct StoreState {
  TierStats::State now = TierStats::State::kBroken;
  std::string reason;
  std::string full_reason;  // "": something can be stored
  uint64_t missing_bytes = 0;
  bool is_durable = true;
  uint64_t cap_bytes = 0;
  // Some key file cannot be unsealed: a record without a key may be somebody's.
  bool has_unread_keys = false;
  bool wants_help = false;                  // segments wait to be scanned
  bool must_leave = false;                  // too many errors: the writer leaves the store
  std::shared_ptr<const StoreFiles> files;  // null unless it is on
};

// What is counted.
struct StoreFigures {
  TierStats stats;  // blocks: how many were ever stored
  uint64_t hits = 0;
  uint64_t written_day = 0;  // the day of stats.written_today_bytes, since 1970
  double read_bytes_per_s = 0, open_bytes_per_s = 0;
  double kept_bytes_per_s = 0;  // of about.json
  ErrorWindow errors;
  int last_error = 0;  // its errno; 0: there was none

  // Returns the speed of reading and unsealing one after the other, or what was measured before
  // this start.
  double load_bytes_per_s() const;
};

// Hours and orders of use, which never go back, whatever the clock does. Thread-compatible.
class UseClock {
 public:
  explicit UseClock(Storage& storage) : storage_(storage) {}
  uint32_t NowHour();   // since 1970
  uint64_t NewOrder();  // RecordIndex::Record::order of a use now
  uint32_t latest_hour() const { return latest_hour_; }
  void NotBefore(uint32_t hour);

 private:
  Storage& storage_;
  uint32_t latest_hour_ = 0;
  uint64_t last_order_ = 0;
};

// The owners for whom something is being removed. Nothing of them is stored meanwhile.
struct LeavingOwners {
  // Their erases have not succeeded yet: when one is tried again, it would remove a new key too.
  std::vector<Digest> erasing;
  // Their forgets have not succeeded yet; after the last one what stays is found again.
  std::vector<Digest> forgetting;

  bool IsErasing(const Digest& owner) const;
  bool IsForgetting(const Digest& owner) const;
};

enum class EvictCause : uint8_t { kCap, kSpace, kTtl };

// `mutex` is never held during I/O or a callback. Two threads work on it beside Tier's callers: the
// *writer*, which makes all changes on the disk, and the *reader*.
struct Store {
  static constexpr uint64_t kBesideBytes = uint64_t{2} << 20;  // of the cap, for all but segments
  static constexpr uint64_t kSessionBytes = uint64_t{512} << 10;  // of those, for sessions

  // `storage` must outlive it. kExhausted: the system refuses the memory.
  static Result<std::unique_ptr<Store>> Create(const DiskTierOptions& options, Storage& storage);
  // Returns what Create allocates for the index and for the buffers.
  static constexpr uint32_t kMinBuffers = 8;
  static uint64_t IndexBytes(const DiskTierOptions& options);
  static uint64_t BufferBytes(const DiskTierOptions& options);
  static uint32_t MaxRecords(const DiskTierOptions& options);
  static uint32_t NumBuffers(const DiskTierOptions& options);

  // Returns a free buffer; the caller sets its use and counts it.
  std::optional<uint32_t> FreeBuffer() const KV_REQUIRES(mutex);
  void FreeBufferOf(uint32_t buffer) KV_REQUIRES(mutex);
  // Returns the owner's key, made if it is new. Absent: no room for another one.
  std::optional<OwnerId> OwnerOf(const Digest& owner) KV_REQUIRES(mutex);
  // Removes the record from the index; its slot is free, its owner has one record less.
  void DropRecord(EntryId entry) KV_REQUIRES(mutex);
  // Removes the coldest record on which nothing depends. False: there is none that may leave.
  bool Evict(EvictCause cause) KV_REQUIRES(mutex);

  // Ends what a read has of the index and of its slot.
  void EndReader(RecordBuffer& read) KV_REQUIRES(mutex);
  // Lets the record leave; its reads keep the bytes that were read.
  void ForgetReadsOf(EntryId entry) KV_REQUIRES(mutex);
  // Cancels reads of the owner.
  void CancelReadsOf(OwnerId owner) KV_REQUIRES(mutex);
  // Cancels writes of the owner; their records stay in the index.
  void CancelWritesOf(OwnerId owner) KV_REQUIRES(mutex);
  // Cancels the write of this record. The record is not on the disk, so no slot has it.
  // REQUIRES: no group is being written.
  void CancelWrite(EntryId entry) KV_REQUIRES(mutex);
  // Frees the buffer of a write that came to nothing.
  void EndFailedWrite(uint32_t buffer) KV_REQUIRES(mutex);

  // Forgets everything: nothing is found any more, what is under way comes to nothing.
  void Leave(std::string reason) KV_REQUIRES(mutex);

  // Returns whether the writer should write a group of the records that wait: there are many, the
  // first has waited long, or a flush waits for them.
  bool IsGroupDue() const KV_REQUIRES(mutex);
  // Returns the most records of a group.
  uint32_t max_group() const;

  // Counts an error of the disk, by its errno. After too many the store is left, by the writer,
  // when it has finished what it does. Takes the mutex.
  void CountError(uint64_t TierStats::*counter, int error);
  // Returns ", last error: No such file or directory"; empty before the first.
  std::string LastErrorText() const KV_REQUIRES(mutex);
  // Returns whether index and slots agree; for tests. O(n).
  bool CheckInvariants() const KV_REQUIRES(mutex);

  const DiskTierOptions options;
  Storage& storage;
  const StoreId id;
  mutable Mutex mutex;
  std::condition_variable writer_wake, reader_wake;
  bool writer_has_news KV_GUARDED_BY(mutex) = false;
  bool is_stopping KV_GUARDED_BY(mutex) = false;
  Arena index_arena, buffer_arena;
  RecordIndex records KV_GUARDED_BY(mutex);
  SegmentTable segments KV_GUARDED_BY(mutex);
  BufferQueues queues KV_GUARDED_BY(mutex);
  // Guarded by the mutex, except that the fields and bytes of a buffer that is being sealed,
  // written or read belong to who does that.
  const RecordBuffers buffers;
  OwnerKeys keys KV_GUARDED_BY(mutex);
  StoreState state KV_GUARDED_BY(mutex);
  StoreFigures figures KV_GUARDED_BY(mutex);
  UseClock clock KV_GUARDED_BY(mutex);
  LeavingOwners leaving KV_GUARDED_BY(mutex);
  // The writer's alone: state.files, also while the store is being opened.
  std::shared_ptr<const StoreFiles> writing_files;

 private:
  Store(const DiskTierOptions& tier_options, Storage& tier_storage, Arena index, Arena out,
        OwnerKeys owner_keys);
};

}  // namespace kvasir
