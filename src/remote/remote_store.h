// RemoteStore: what the threads of a remote tier share: names, owners, buffers, and the lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/mutex.h"
#include "remote/fleet_keys.h"
#include "remote/redis_connection.h"
#include "remote/remote_breaker.h"
#include "remote/remote_epochs.h"
#include "remote/remote_names.h"
#include "remote/remote_tier_options.h"
#include "tier/fixed_queue.h"
#include "tier/owner_keys.h"
#include "tier/progress_call.h"
#include "tier/tier.h"

namespace kvasir {

// A value on its way out or in.
struct RemoteBuffer {
  enum class Use : uint8_t { kFree, kSealing, kQueued, kReading, kArrived, kFailed };
  Use use = Use::kFree;
  bool is_erased = false;  // cancelled by an erase or a forget
  bool is_bad = false;     // could not be sealed
  RecordName name;
  OwnerId owner{};
  uint32_t refs = 0;                     // of a read
  ReadState ended = ReadState::kFailed;  // of a read that failed: kFailed, kGone or kDown
  uint64_t number = 0;                   // of a write that was handed over
};

// What is known of an owner, beside the key in OwnerKeys.
struct RemoteOwner {
  std::string name;    // in the store
  uint64_t epoch = 0;  // 0: its object was not read yet
  bool wants_sync = false;
  uint32_t num_erases = 0, num_forgets = 0;  // that have not succeeded yet
  // Another machine has erased it, and this one's pool may still have blocks of before: none is
  // written.
  bool awaits_erase = false;
  // It was opened while the store was not asked: the pool may have blocks of before an erase. (What
  // was noted without a disk, another process may have noted.)
  bool is_older = false;
  bool is_kept = false;  // the disk had records of it at the start

  bool is_erasing() const { return num_erases > 0; }
  bool is_usable() const { return epoch != 0 && !is_erasing() && num_forgets == 0; }
  // Returns whether its object is to be read now.
  bool is_due() const { return wants_sync && !is_erasing(); }
};

// How long a kind of operation takes, of one thread.
struct UsualTime {
  double usual_ns = 0;
  void Observe(uint64_t ns) {
    usual_ns =
        usual_ns == 0 ? static_cast<double>(ns) : usual_ns * 0.9 + static_cast<double>(ns) * 0.1;
  }
};

// An owner whose blocks this machine has to erase.
struct ErasedOwner {
  Digest owner{};
  uint64_t epoch = 0;  // to note when that is done; 0: none
  // Another machine has erased it since this one knew it: what else this one keeps of it goes too.
  // False: its blocks may be of before an erase, or it is not followed any more.
  bool elsewhere = false;

  bool operator==(const ErasedOwner&) const = default;
};

struct RemoteStore {
  using State = RemoteStats::State;

  static Result<std::unique_ptr<RemoteStore>> Create(const RemoteTierOptions& options);
  // Return what Create allocates for names and owners, and for buffers.
  static uint64_t IndexBytes(const RemoteTierOptions& options);
  static uint64_t BufferBytes(const RemoteTierOptions& options);
  static constexpr uint64_t kProbeBytes = uint64_t{1} << 20;
  static constexpr uint32_t kMaxOwners = OwnerKeys::kMaxOwners;

  // Seconds since the start, from 1.
  uint32_t NowS() const;
  std::span<std::byte> ValueOf(uint32_t buffer) const;
  std::optional<uint32_t> FreeBuffer() const KV_REQUIRES(mutex);
  void FreeBufferOf(uint32_t buffer) KV_REQUIRES(mutex);
  // Returns the owner, made if it is new, in the place of another one where all are taken: that one
  // is not followed any more, so the engine is to erase it here. Absent: no room for another one.
  std::optional<OwnerId> OwnerOf(const Digest& owner) KV_REQUIRES(mutex);
  RemoteOwner& at(OwnerId owner) KV_REQUIRES(mutex) { return owners[static_cast<size_t>(owner)]; }
  const RemoteOwner& at(OwnerId owner) const KV_REQUIRES(mutex) {
    return owners[static_cast<size_t>(owner)];
  }
  // Takes an epoch of an owner over: names and keys of another one come to nothing.
  void SetEpoch(OwnerId owner, const OwnerEpoch& epoch) KV_REQUIRES(mutex);
  // Cancels reads and writes of an owner, and forgets its names.
  void CancelOwner(OwnerId owner) KV_REQUIRES(mutex);
  // Returns whether the day's bytes do not hold one more value. Past half of them only those are
  // written that were used again.
  bool IsOverDaily(bool used_again) KV_REQUIRES(mutex);
  // Begins a day's count where the day (since 1970, UTC) is another one.
  void BeginDay(uint64_t day) KV_REQUIRES(mutex);
  // Ends a write; `stored`: the store has it.
  void EndWrite(uint32_t buffer, bool stored) KV_REQUIRES(mutex);
  // Ends a read that a thread had.
  void EndRead(uint32_t buffer, ReadState ended) KV_REQUIRES(mutex);

  // Counts how long a lookup took, or would have taken. One that is late counts as a little more
  // than the usual, so that a busy moment does not end them all.
  void ObserveLook(double ns) KV_REQUIRES(mutex);
  // Returns how long a value takes by what is known of the store.
  double ValueNs() const KV_REQUIRES(mutex);
  // Counts a fault of the store, which may turn the tier off. Take the mutex.
  void CountFault(const Error& error);
  void CountStall();
  // Turns the tier off, until its breaker asks again; where it is off already, that stays.
  void TurnOff(const std::string& reason);
  void TurnOffLocked(const std::string& reason) KV_REQUIRES(mutex);
  // Returns a connection's Waits for an operation that began at *start_ns: it counts stalls, and
  // gives up when the tier is off or ends.
  RedisConnection::Waits WaitsOf(const uint64_t& start_ns, const UsualTime& usual);
  bool is_on() const;
  // Opens a connection to where the looker found the store.
  Status Connect(RedisConnection& connection, const RedisConnection::Waits& waits);

  const RemoteTierOptions options;
  const FleetKeys keys;
  RemoteEpochs epochs;
  const uint64_t start_ns;
  mutable Mutex mutex;
  std::condition_variable reader_wake, writer_wake, looker_wake;
  std::atomic<bool> is_stopping{false};  // relaxed: the wakes carry what matters
  Arena index_arena, buffer_arena;
  OwnerKeys owner_keys KV_GUARDED_BY(mutex);
  std::vector<RemoteOwner> owners KV_GUARDED_BY(mutex);  // [kMaxOwners]
  RemoteNames names KV_GUARDED_BY(mutex);
  // Fields are guarded by the mutex; the bytes belong to who seals, sends, receives or opens them.
  RemoteBuffer* const buffers;
  std::byte* const values;
  std::byte* const probe;
  const uint32_t num_buffers;
  FixedQueue reads KV_GUARDED_BY(mutex), writes KV_GUARDED_BY(mutex);
  uint32_t num_writes KV_GUARDED_BY(mutex) = 0, num_reads KV_GUARDED_BY(mutex) = 0;
  uint32_t next_buffer KV_GUARDED_BY(mutex) = 0;
  uint64_t last_write KV_GUARDED_BY(mutex) = 0;    // number of the last write handed over
  uint64_t num_failed KV_GUARDED_BY(mutex) = 0;    // writes handed over that came to nothing
  uint64_t written_day KV_GUARDED_BY(mutex) = 0;   // of stats.written_today_bytes, since 1970
  size_t next_owner KV_GUARDED_BY(mutex) = 0;      // whose place is asked for first
  SocketAddresses addresses KV_GUARDED_BY(mutex);  // of the host
  State state KV_GUARDED_BY(mutex) = State::kConnecting;
  std::string reason KV_GUARDED_BY(mutex);
  RemoteBreaker breaker KV_GUARDED_BY(mutex);
  RemoteStats stats KV_GUARDED_BY(mutex);
  double look_ns KV_GUARDED_BY(mutex) = 0;  // how long a lookup usually takes
  double load_bytes_per_s KV_GUARDED_BY(mutex) = 0;
  std::vector<ErasedOwner> erased KV_GUARDED_BY(mutex);  // what the engine is to erase here
  struct FailedErase {
    ErasedOwner owner;
    uint64_t due_ns = 0;
  };
  std::vector<FailedErase> failed KV_GUARDED_BY(mutex);  // here; `erased` gets them again
  std::vector<ErasedOwner> notes KV_GUARDED_BY(mutex);   // what the looker is to note
  ProgressCall progress;

 private:
  RemoteStore(const RemoteTierOptions& tier_options, Arena index, Arena out, OwnerKeys keys_area);
};

}  // namespace kvasir
