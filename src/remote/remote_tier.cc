#include "remote/remote_tier.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "base/sizes.h"
#include "base/start_thread.h"

namespace kvasir {

Status RemoteTier::CheckMemory(const RemoteTierOptions& options) {
  constexpr uint32_t kLeast = 8;
  if (options.num_buffers() >= kLeast) return {};
  return FailField(Code::kInvalidArgument, "remote_memory",
                   "{} bytes hold fewer than {} of this model's blocks; give at least {}",
                   options.memory_bytes, kLeast,
                   RoundedUpMib(kLeast * RoundUp(options.value_bytes(), 64)));
}

Result<std::unique_ptr<RemoteTier>> RemoteTier::Open(const RemoteTierOptions& options) {
  KV_TRY(CheckMemory(options));
  KV_ASSIGN(std::unique_ptr<RemoteStore> store, RemoteStore::Create(options));
  std::unique_ptr<RemoteTier> tier(new RemoteTier(std::move(store)));
  {
    const MutexLock lock(tier->store_->mutex);
    for (const Digest& owner : options.owners) {
      if (const auto id = tier->store_->OwnerOf(owner)) tier->store_->at(*id).is_kept = true;
    }
  }
  RemoteTier* const one = tier.get();
  KV_ASSIGN(tier->looker_thread_, StartThread("remote tier", [one] { one->looker_.Loop(); }));
  KV_ASSIGN(tier->reader_thread_, StartThread("remote tier", [one] { one->reader_.Loop(); }));
  KV_ASSIGN(tier->writer_thread_, StartThread("remote tier", [one] { one->writer_.Loop(); }));
  // What other machines have erased while this one was off is known before its first request.
  const uint64_t end_ns = MonotonicNs() + 500'000'000;
  while (!tier->IsSettled() && MonotonicNs() < end_ns) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return tier;
}

bool RemoteTier::IsSettled() const {
  const MutexLock lock(store_->mutex);
  return store_->state.now != RemoteStore::State::kConnecting &&
         (store_->state.now == RemoteStore::State::kOff ||
          std::ranges::none_of(store_->owners.all, &RemoteOwner::is_due));
}

RemoteTier::RemoteTier(std::unique_ptr<RemoteStore> store)
    : store_(std::move(store)), looker_(*store_), reader_(*store_), writer_(*store_, looker_) {}

RemoteTier::~RemoteTier() {
  store_->progress.Stop();
  {
    const MutexLock lock(store_->mutex);
    store_->is_stopping.store(true, std::memory_order_relaxed);
  }
  store_->looker_wake.notify_all();
  store_->reader_wake.notify_all();
  store_->writer_wake.notify_all();
  for (std::thread* thread : {&looker_thread_, &reader_thread_, &writer_thread_}) {
    if (thread->joinable()) thread->join();
  }
}

bool RemoteTier::Has(const RecordName& name) const {
  const MutexLock lock(store_->mutex);
  if (store_->state.now != RemoteStore::State::kOn) return false;
  const RemoteNames::Entry* const entry = std::as_const(store_->names).Find(name);
  return entry != nullptr && entry->IsFresh(store_->NowS()) && store_->at(entry->owner).is_usable();
}

uint64_t RemoteTier::LookNs() const {
  const MutexLock lock(store_->mutex);
  return static_cast<uint64_t>(store_->figures.look_ns);
}

double RemoteTier::LoadBytesPerS(TierKind) const {
  const MutexLock lock(store_->mutex);
  return store_->figures.load_bytes_per_s;
}

bool RemoteTier::ReadyOwner(const Digest& owner) {
  const MutexLock lock(store_->mutex);
  const auto id = store_->OwnerOf(owner);
  const bool is_asked = store_->state.now == RemoteStore::State::kOn;
  if (id && !is_asked && store_->at(*id).epoch == 0) store_->at(*id).is_older = true;
  if (id && store_->at(*id).is_due()) store_->looker_wake.notify_one();
  return id.has_value();
}

void RemoteTier::CountDropped(WriteRefusal why, uint32_t) {
  const MutexLock lock(store_->mutex);
  RemoteStats& stats = store_->figures.stats;
  ++(why == WriteRefusal::kBudget     ? stats.dropped_budget
     : why == WriteRefusal::kNoBuffer ? stats.dropped_buffer
                                      : stats.dropped_failed);
}

TierStats RemoteTier::Stats() const {
  const RemoteStats remote = Remote();
  TierStats stats;
  stats.state =
      remote.state == RemoteStats::State::kOn ? TierStats::State::kOn : TierStats::State::kBroken;
  stats.reason = remote.reason;
  stats.folder = remote.host;
  stats.pending_blocks = remote.pending_blocks;
  stats.load_bytes_per_s = remote.load_bytes_per_s;
  stats.read_bytes = remote.read_bytes;
  stats.written_bytes = remote.written_bytes;
  stats.dropped_buffer = remote.dropped_buffer;
  stats.dropped_failed = remote.dropped_failed;
  stats.dropped_budget = remote.dropped_budget;
  stats.fault_read = remote.fault_io;
  stats.fault_stalled = remote.fault_stalled;
  stats.fault_damaged = remote.fault_damaged;
  return stats;
}

RemoteStats RemoteTier::Remote() const {
  const MutexLock lock(store_->mutex);
  RemoteStats stats = store_->figures.stats;
  stats.state = store_->state.now;
  stats.reason = store_->state.reason;
  stats.load_bytes_per_s = store_->figures.load_bytes_per_s;
  stats.pending_blocks = store_->queues.num_writes;
  stats.daily_bytes = store_->options.daily_bytes;
  return stats;
}

std::optional<uint64_t> RemoteTier::EpochOf(const Digest& owner) const {
  const MutexLock lock(store_->mutex);
  const auto id = store_->owner_keys.Find(owner);
  if (!id || store_->at(*id).epoch == 0) return std::nullopt;
  return store_->at(*id).epoch;
}

std::vector<ErasedOwner> RemoteTier::TakeErased() {
  const MutexLock lock(store_->mutex);
  return std::exchange(store_->erasures.due, {});
}

void RemoteTier::EraseHere(const Digest& owner, std::function<void(Result<TierErased>)> done) {
  {
    const MutexLock lock(store_->mutex);
    if (const auto id = store_->owner_keys.Find(owner)) store_->at(*id).awaits_erase = false;
  }
  done(TierErased{});
}

void RemoteTier::EraseAgain(const ErasedOwner& erased) {
  const MutexLock lock(store_->mutex);
  store_->erasures.failed.push_back({.owner = {.owner = erased.owner, .epoch = erased.epoch},
                                     .due_ns = MonotonicNs() + store_->options.again_ns});
}

void RemoteTier::NoteErased(const ErasedOwner& erased) {
  if (erased.epoch == 0) return;
  {
    const MutexLock lock(store_->mutex);
    store_->erasures.notes.push_back(erased);
  }
  store_->looker_wake.notify_one();
}

}  // namespace kvasir
