// RemoteLooker: what the store and this machine know of owners.
#include <algorithm>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "remote/remote_looker.h"

namespace kvasir {

// Reads the objects of owners that are new, and every 10 s those of all. A lookup that comes goes
// first: the rest stays due.
void RemoteLooker::SyncDue() {
  if (const Status connected = Connect(); !connected) return store_.CountFault(connected.error());
  std::vector<Digest> due;
  const bool polls = MonotonicNs() >= polled_ns_ + kPollNs;
  {
    MutexLock lock(store_.mutex);
    for (size_t i = 0; i < store_.owners.all.size(); ++i) {
      RemoteOwner& owner = store_.owners.all[i];
      if (polls) owner.wants_sync |= !owner.name.empty();
      if (owner.is_due()) due.push_back(store_.owner_keys.owner_of(OwnerId(i)));
    }
  }
  if (polls) polled_ns_ = MonotonicNs();
  for (const Digest& owner : due) {
    began_ns_ = MonotonicNs();
    const Status synced = SyncOwner(*client_, owner, waits_);
    if (!synced) store_.CountFault(synced.error());
    if (!client_->is_open()) return;  // it is still due
    MutexLock lock(store_.mutex);
    if (const auto id = store_.owner_keys.Find(owner)) store_.at(*id).wants_sync = false;
    if (synced) usual_.Observe(MonotonicNs() - began_ns_);
    if (!looks_.empty()) break;
  }
  MutexLock lock(store_.mutex);
  store_.figures.ObserveLook(2 * usual_.usual_ns);
}

Status RemoteLooker::SyncOwner(StoreClient& client, const Digest& owner,
                               const StoreClient::Waits& waits) {
  const std::string name = store_.keys.OwnerName(owner);
  KV_ASSIGN(const StoredOwner stored, ReadOwner(client, store_.keys, name, waits));
  return Settle(client, owner, name, stored, waits);
}

// Brings an owner and its object together. The higher epoch counts; at the same epoch the store's.
Status RemoteLooker::Settle(StoreClient& client, const Digest& owner, const std::string& name,
                            const StoredOwner& stored, const StoreClient::Waits& waits) {
  OwnerEpoch known;
  {
    MutexLock lock(store_.mutex);
    const auto id = store_.owner_keys.Find(owner);
    if (!id || store_.at(*id).is_erasing()) return {};
    known = {store_.at(*id).epoch, store_.owner_keys.key_of(*id)};
  }
  // The last epoch that was seen.
  uint64_t least = known.epoch;
  if (least == 0) {
    const Result<uint64_t> kept = store_.epochs.Read(name);
    if (!kept) return {};  // it has logged why
    least = *kept;
  }
  if (stored.epoch && stored.epoch->epoch >= least) {
    Adopt(owner, *stored.epoch, least);
    return {};
  }
  if (store_.options.mode == RemoteMode::kRead) return {};
  OwnerEpoch made = known;
  if (!stored.is_there || known.epoch == 0) {
    made.epoch = std::max<uint64_t>(least, 1);
    KV_TRY(FillRandom(made.random));
  }
  const auto is_sound = [&](const StoredOwner& one) {
    return one.epoch && one.epoch->epoch >= least;
  };
  StoredOwner now = stored;
  if (!stored.is_there) {  // the first machine makes it
    KV_TRY(MakeOwner(client, store_.keys, name, made, waits));
    KV_ASSIGN(now, ReadOwner(client, store_.keys, name, waits));
  }
  if (!is_sound(now)) {
    const NextOwner next = [&](const StoredOwner& one) -> Result<std::optional<OwnerEpoch>> {
      return is_sound(one) ? std::nullopt : std::optional(made);
    };
    KV_ASSIGN(now, ChangeOwner(client, store_.keys, name, next, waits));
  }
  if (now.epoch) Adopt(owner, *now.epoch, least);
  return {};
}

// Takes over what the store has of an owner, unless that is older than `least` or than what an
// erase has made known meanwhile. Where another machine has erased it, this one has to.
void RemoteLooker::Adopt(const Digest& owner, const OwnerEpoch& stored, uint64_t least) {
  {
    MutexLock lock(store_.mutex);
    const auto id = store_.owner_keys.Find(owner);
    if (!id || store_.at(*id).is_erasing()) return;
    RemoteOwner& one = store_.at(*id);
    if (stored.epoch < std::max(least, one.epoch)) return;
    if (stored.epoch == one.epoch) return store_.SetEpoch(*id, stored);
    // The epoch of what this machine has; where it has nothing, that of the store.
    uint64_t here = stored.epoch;
    if (one.epoch != 0) {
      here = one.epoch;
    } else if (!store_.options.has_disk) {
      if (one.is_older) here = 1;
    } else if (least != 0 || one.is_kept || one.is_older) {
      here = std::max<uint64_t>(least, 1);
    }
    if (stored.epoch > here) {
      // An owner that this machine never had may have been erased long before.
      const bool elsewhere = one.epoch != 0 || least != 0 || one.is_kept;
      store_.erasures.due.push_back(
          {owner, stored.epoch, elsewhere});  // and noted when that is done
      one.awaits_erase = true;
    }
    one.is_older = false;
    store_.SetEpoch(*id, stored);
    if (stored.epoch <= here)
      store_.erasures.notes.push_back({.owner = owner, .epoch = stored.epoch});
  }
  store_.progress.Call();
}

// Has the engine erase once more what it could not erase a minute ago.
void RemoteLooker::EraseAgain() {
  {
    MutexLock lock(store_.mutex);
    const uint64_t now = MonotonicNs();
    const size_t before = store_.erasures.due.size();
    for (const auto& one : store_.erasures.failed) {
      if (one.due_ns <= now) store_.erasures.due.push_back(one.owner);
    }
    if (store_.erasures.due.size() == before) return;
    std::erase_if(store_.erasures.failed, [&](const auto& one) { return one.due_ns <= now; });
  }
  store_.progress.Call();
}

void RemoteLooker::WriteNotes() {
  std::vector<ErasedOwner> notes;
  {
    MutexLock lock(store_.mutex);
    notes.swap(store_.erasures.notes);
  }
  for (const ErasedOwner& note : notes) {
    store_.epochs.Write(store_.keys.OwnerName(note.owner), note.epoch);
  }
}

}  // namespace kvasir
