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
#include <string_view>
#include <vector>

#include "base/arena.h"
#include "base/mutex.h"
#include "remote/fleet_keys.h"
#include "remote/remote_breaker.h"
#include "remote/remote_buffers.h"
#include "remote/remote_epochs.h"
#include "remote/remote_names.h"
#include "remote/remote_tier_options.h"
#include "remote/store_client.h"
#include "tier/owner_keys.h"
#include "tier/progress_call.h"
#include "tier/tier.h"

namespace kvasir {

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

// The owners that are followed.
struct RemoteOwners {
  std::vector<RemoteOwner> all;  // [RemoteStore::kMaxOwners], by OwnerId
  size_t next = 0;               // whose place is asked for first
};

// Whether the store is asked, and where not, why.
struct RemoteState {
  RemoteStats::State now = RemoteStats::State::kConnecting;
  std::string reason;
  SocketAddresses addresses;  // of the host
  RemoteBreaker breaker;
  uint64_t on_ns = 0;  // when it was last found to answer
};

// What is counted and measured.
struct RemoteFigures {
  RemoteStats stats;
  uint64_t written_day = 0;     // of stats.written_today_bytes, since 1970
  double look_ns = 0;           // how long a lookup usually takes
  double load_bytes_per_s = 0;  // as if no value were compressed
  double wire_bytes_per_s = 0;  // 0: not known

  // Counts how long a value of so many bytes took to come, which has `whole_bytes` uncompressed.
  void ObserveValue(uint64_t ns, uint64_t bytes, uint64_t whole_bytes);
  // Counts how long a lookup took, or would have taken. One that is late counts as a little more
  // than the usual, so that a busy moment does not end them all.
  void ObserveLook(double ns);
  // Returns how long a value of so many bytes takes, by what is known of the store.
  double ValueNs(uint64_t whole_bytes) const;
  // Begins a day's count where today (since 1970, UTC) is another day than the count's.
  void BeginDay();
};

// The owners whose blocks have to be erased on this machine, and what became of that.
struct ErasuresHere {
  struct Failed {
    ErasedOwner owner;
    uint64_t due_ns = 0;
  };
  std::vector<ErasedOwner> due;    // what the engine is to erase
  std::vector<Failed> failed;      // `due` gets them again
  std::vector<ErasedOwner> notes;  // what the looker is to note
};

// What the parts of a remote tier share. `mutex` is never held during I/O or a callback.
struct RemoteStore {
  using State = RemoteStats::State;

  static Result<std::unique_ptr<RemoteStore>> Create(const RemoteTierOptions& options);
  // Return what Create allocates for names and owners, and for buffers and codecs.
  static uint64_t IndexBytes(const RemoteTierOptions& options);
  static uint64_t BufferBytes(const RemoteTierOptions& options);
  static constexpr size_t kClients = 3;  // each of a thread
  static constexpr uint32_t kMaxOwners = OwnerKeys::kMaxOwners;

  // Returns the seconds since the start, from 1.
  uint32_t NowS() const;
  std::optional<uint32_t> FreeBuffer() const KV_REQUIRES(mutex);
  void FreeBufferOf(uint32_t buffer) KV_REQUIRES(mutex);
  // Returns the owner, made if it is new, in the place of another one where all are taken: that one
  // is not followed any more, so the engine is to erase it here. Absent: no room for another one.
  std::optional<OwnerId> OwnerOf(const Digest& owner) KV_REQUIRES(mutex);
  RemoteOwner& at(OwnerId owner) KV_REQUIRES(mutex) {
    return owners.all[static_cast<size_t>(owner)];
  }
  const RemoteOwner& at(OwnerId owner) const KV_REQUIRES(mutex) {
    return owners.all[static_cast<size_t>(owner)];
  }
  // Takes an epoch of an owner over: names and keys of another one come to nothing.
  void SetEpoch(OwnerId owner, const OwnerEpoch& epoch) KV_REQUIRES(mutex);
  // Cancels reads and writes of an owner, and forgets its names.
  void CancelOwner(OwnerId owner) KV_REQUIRES(mutex);
  // Returns whether the day's bytes do not hold one more value. Past half of them only those are
  // written that were used again.
  bool IsOverDaily(bool used_again) KV_REQUIRES(mutex);
  // Ends a write; `stored`: the store has it.
  void EndWrite(uint32_t buffer, bool stored) KV_REQUIRES(mutex);
  // Ends a read that a thread had.
  void EndRead(uint32_t buffer, ReadState ended) KV_REQUIRES(mutex);

  // Returns whether what is sealed now is to be compressed.
  bool Compresses() const KV_REQUIRES(mutex);
  // Counts how long a value of so many bytes took to come.
  void ObserveValue(uint64_t ns, uint64_t bytes) KV_REQUIRES(mutex) {
    figures.ObserveValue(ns, bytes, options.value_bytes());
  }
  // Counts a fault of the store, which may turn the tier off. Take the mutex.
  void CountFault(const Error& error);
  void CountStall();
  // Turns the tier off, until its breaker asks again; where it is off already, that stays.
  void TurnOff(const std::string& reason);
  void TurnOffLocked(const std::string& reason) KV_REQUIRES(mutex);
  // Returns a client's Waits for an operation that began at *start_ns: it counts stalls by the time
  // in which the store was waited for, and gives up when the tier is off or ends.
  StoreClient::Waits WaitsOf(const uint64_t& start_ns, const UsualTime& usual);
  bool is_on() const;
  // Returns whether it is on, or off only since it is full: then it still removes.
  bool Removes() const;
  // Returns whether a store says by this that it has no room.
  static bool IsFull(std::string_view words) { return words.starts_with("OOM"); }
  // Makes the client of a thread, of which there are kClients.
  std::unique_ptr<StoreClient> NewClient() const;
  // Connects a client to where the looker found the store.
  Status Connect(StoreClient& client, const StoreClient::Waits& waits);

  const RemoteTierOptions options;
  const FleetKeys keys;
  RemoteEpochs epochs;
  const uint64_t start_ns;
  mutable Mutex mutex;
  std::condition_variable reader_wake, writer_wake, looker_wake;
  std::atomic<bool> is_stopping{false};  // relaxed: the wakes carry what matters
  Arena index_arena, buffer_arena;
  OwnerKeys owner_keys KV_GUARDED_BY(mutex);
  RemoteOwners owners KV_GUARDED_BY(mutex);
  RemoteNames names KV_GUARDED_BY(mutex);
  // Guarded by the mutex, except the bytes of buffers.
  RemoteBuffers buffers;
  RemoteQueues queues KV_GUARDED_BY(mutex);
  RemoteState state KV_GUARDED_BY(mutex);
  RemoteFigures figures KV_GUARDED_BY(mutex);
  ErasuresHere erasures KV_GUARDED_BY(mutex);
  ProgressCall progress;

 private:
  RemoteStore(const RemoteTierOptions& tier_options, Arena index, Arena out, OwnerKeys keys_area);
};

}  // namespace kvasir
