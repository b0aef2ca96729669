// RemoteWriter: erases and forgets.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/fault.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "remote/remote_writer.h"

namespace kvasir {
namespace {

constexpr size_t kNamesAtOnce = 500;

using What = StoreRequest::What;

using ErasedCall = std::function<void(Result<TierErased>)>;

ErasedCall JoinDone(ErasedCall first, ErasedCall second) {
  if (!first) return second;
  if (!second) return first;
  return [first = std::move(first), second = std::move(second)](Result<TierErased> erased) {
    first(erased);
    second(std::move(erased));
  };
}

// Takes the keys of blocks that stay from those of a forget.
void LeaveKept(ForgetFacts* facts) {
  std::vector<BlockKey> kept = facts->kept();
  std::ranges::sort(kept);
  std::erase_if(facts->keys,
                [&](const BlockKey& key) { return std::ranges::binary_search(kept, key); });
  *facts = {.owner = facts->owner, .parts = facts->parts, .keys = std::move(facts->keys)};
}

}  // namespace

void RemoteWriter::Erase(const Digest& owner, std::function<void(Result<TierErased>)> done) {
  Add({.owner = owner, .forget = std::nullopt, .done = std::move(done)});
}

void RemoteWriter::Forget(ForgetFacts facts, std::function<void(Result<TierErased>)> done) {
  const Digest owner = facts.owner;
  Add({.owner = owner, .forget = std::move(facts), .done = std::move(done)});
}

void RemoteWriter::Add(Removal removal) {
  {
    MutexLock lock(store_.mutex);
    removal.start_ns = removal.due_ns = MonotonicNs();
    Queue(std::move(removal));
  }
  store_.writer_wake.notify_one();
}

// Joins a removal with those of its owner that wait, so that a store which is down for long costs
// no more than one erase of each owner and kMostKeys keys.
void RemoteWriter::Queue(Removal removal) {
  if (const auto id = store_.OwnerOf(removal.owner);
      id && store_.options.mode == RemoteMode::kReadWrite) {
    store_.CancelOwner(*id);
  }
  size_t keys = removal.forget ? removal.forget->keys.size() : 0;
  for (const Removal& one : removals_) {
    if (one.owner == removal.owner && !one.forget) removal.forget.reset();  // that erases these too
    if (one.forget) keys += kKeysOfOne + one.forget->keys.size();
  }
  if (keys > kMostKeys) removal.forget.reset();
  if (!removal.forget) {
    for (auto one = removals_.begin(); one != removals_.end();) {
      if (one->owner != removal.owner) {
        ++one;
        continue;
      }
      removal.done = JoinDone(std::move(one->done), std::move(removal.done));
      Uncount(&*one);
      one = removals_.erase(one);
    }
  }
  Count(&removal);
  removals_.push_back(std::move(removal));
}

void RemoteWriter::Count(Removal* removal) {
  const auto id = store_.owner_keys.Find(removal->owner);
  if (!id || store_.options.mode != RemoteMode::kReadWrite) return;
  ++(removal->forget ? store_.at(*id).num_forgets : store_.at(*id).num_erases);
  removal->is_counted = true;
}

void RemoteWriter::Uncount(Removal* removal) {
  if (!std::exchange(removal->is_counted, false)) return;
  RemoteOwner& owner = store_.at(*store_.owner_keys.Find(removal->owner));  // it kept its place
  --(removal->forget ? owner.num_forgets : owner.num_erases);
}

bool RemoteWriter::IsDue(const Removal& removal) const {
  return removal.done || removal.due_ns <= MonotonicNs() || removal.tried_ns < store_.state.on_ns;
}

// Notes all that waits: what is asked for is done after a restart too, whatever ends the process.
void RemoteWriter::NoteWaiting() {
  std::vector<Digest> owners;
  {
    MutexLock lock(store_.mutex);
    for (Removal& one : removals_) {
      if (!std::exchange(one.is_noted, true)) owners.push_back(one.owner);
    }
  }
  for (const Digest& owner : owners) notes_.Add(store_.keys.OwnerName(owner), owner);
}

void RemoteWriter::NoteDone(const Digest& owner) {
  {
    MutexLock lock(store_.mutex);
    if (std::ranges::any_of(removals_, [&](const Removal& one) { return one.owner == owner; }))
      return;
  }
  notes_.Remove(store_.keys.OwnerName(owner));
}

// Does what is to be removed, as far as it is due. It reports what fails, and tries it again in a
// minute, when the store is back, and after a restart.
void RemoteWriter::RemoveDue() {
  for (;;) {
    NoteWaiting();
    Removal removal;
    {
      MutexLock lock(store_.mutex);
      const auto due = std::ranges::find_if(
          removals_, [&](const Removal& one) KV_REQUIRES(store_.mutex) { return IsDue(one); });
      if (due == removals_.end()) return;
      removal = std::move(*due);
      removals_.erase(due);
    }
    removal.tried_ns = MonotonicNs();
    // A forget that waits holds the keys alone.
    if (removal.forget && removal.forget->kept) LeaveKept(&*removal.forget);
    const bool reads_only = store_.options.mode == RemoteMode::kRead;
    Result<TierErased> erased = TierErased();
    if (reads_only) {
      erased =
          FailCause(Code::kUnavailable, Cause::kReadOnly,
                    "memory is erased, but blocks stay in the store {}: with --remote-mode "
                    "read nothing is erased there; erase the cache by a server that writes to it",
                    store_.options.address.text());
    } else if (Connect()) {
      erased = removal.forget ? ForgetNames(removal) : EraseOwner(removal);
      if (!erased) {
        store_.CountFault(erased.error());
        erased = Fail(Code::kUnavailable,
                      "memory is erased, but blocks stay in the store: {}; it is tried again each "
                      "minute and at the next start",
                      StoreWords(erased.error().message));
      }
    } else {
      MutexLock lock(store_.mutex);
      erased = Fail(Code::kUnavailable,
                    "memory is erased, but blocks stay in the store {}, which is {}: {}; it is "
                    "tried again each minute and at the next start",
                    store_.options.address.text(), ToString(store_.state.now),
                    store_.state.reason.empty() ? "it has not answered yet" : store_.state.reason);
    }
    if (erased && !reads_only) {
      MutexLock lock(store_.mutex);
      store_.figures.stats.erased_blocks += erased->blocks;
      Uncount(&removal);
    }
    if (erased && !reads_only) NoteDone(removal.owner);
    const auto done = std::exchange(removal.done, nullptr);
    if (!erased && !reads_only) {
      removal.due_ns = MonotonicNs() + store_.options.again_ns;
      MutexLock lock(store_.mutex);
      const bool joins = std::ranges::any_of(
          removals_, [&](const Removal& one) { return one.owner == removal.owner && !one.forget; });
      if (joins) {
        Uncount(&removal);  // an erase of the owner waits, and does this too
      } else {
        removals_.push_back(std::move(removal));
      }
    }
    if (done) done(std::move(erased));
  }
}

// Writes the owner's object with the next epoch, so that nothing of before can be unsealed any
// more. Epochs are times, so that a machine does not take one that others have seen after the store
// lost its data. Of two machines that erase at once the later one takes the higher epoch.
Result<OwnerEpoch> RemoteWriter::RaiseEpoch(const Digest& owner) {
  const std::string name = store_.keys.OwnerName(owner);
  OwnerEpoch known{.epoch = store_.epochs.Read(name).value_or(0)};
  {
    MutexLock lock(store_.mutex);
    const auto id = store_.owner_keys.Find(owner);
    if (id) known.epoch = std::max(known.epoch, store_.at(*id).epoch);
    if (id && FaultActive(Fault::kKeptEpoch)) {
      return OwnerEpoch{store_.at(*id).epoch, store_.owner_keys.key_of(*id)};
    }
  }
  const auto next = [&](const StoredOwner& stored) -> Result<std::optional<OwnerEpoch>> {
    const uint64_t last = std::max(known.epoch, stored.epoch ? stored.epoch->epoch : 0);
    OwnerEpoch one{.epoch = std::max(last + 1, static_cast<uint64_t>(UnixNs() / 1'000'000))};
    KV_TRY(FillRandom(one.random));
    return one;
  };
  began_ns_ = MonotonicNs();
  KV_ASSIGN(const StoredOwner raised, ChangeOwner(*client_, store_.keys, name, next, waits_));
  store_.epochs.Write(name, raised.epoch->epoch);
  return *raised.epoch;
}

Result<TierErased> RemoteWriter::EraseOwner(Removal& removal) {
  if (removal.epoch == 0) {
    Result<OwnerEpoch> raised = RaiseEpoch(removal.owner);
    if (!raised && RemoteStore::IsFull(raised.error().message)) {
      raised = MakeRoom(removal, raised.error());
    }
    KV_ASSIGN(const OwnerEpoch epoch, std::move(raised));
    removal.epoch = epoch.epoch;
    MutexLock lock(store_.mutex);
    if (const auto id = store_.owner_keys.Find(removal.owner)) store_.SetEpoch(*id, epoch);
  }
  KV_TRY(RemoveNames(removal));
  return ErasedBy(removal, true);
}

Result<OwnerEpoch> RemoteWriter::MakeRoom(Removal& removal, Error full) {
  const std::string below = store_.keys.OwnerName(removal.owner) + "/";
  std::string page;
  do {
    began_ns_ = MonotonicNs();
    KV_ASSIGN(StorePage found, client_->List(below, page, waits_));
    KV_ASSIGN(const uint64_t removed, AskEach(What::kRemove, found.names));
    removal.removed += removed;
    page = std::move(found.next);
    if (removed == 0) continue;
    Result<OwnerEpoch> raised = RaiseEpoch(removal.owner);
    if (raised || !RemoteStore::IsFull(raised.error().message)) return raised;
  } while (!page.empty() && !store_.is_stopping.load(std::memory_order_relaxed));
  return tl::unexpected(std::move(full));
}

TierErased RemoteWriter::ErasedBy(const Removal& removal, bool is_complete) const {
  return {.blocks = removal.removed,
          .bytes = removal.removed * store_.options.value_bytes(),
          .remote = RemoteErased{removal.epoch, removal.removed, is_complete}};
}

// Removes all records of an owner. After answer_ns it answers, and goes on.
Status RemoteWriter::RemoveNames(Removal& removal) {
  const std::string below = store_.keys.OwnerName(removal.owner) + "/";
  std::string page;
  do {
    if (store_.is_stopping.load(std::memory_order_relaxed)) {
      return Fail(Code::kCancelled, "the process ends");
    }
    NoteWaiting();
    began_ns_ = MonotonicNs();
    KV_ASSIGN(StorePage found, client_->List(below, page, waits_));
    KV_ASSIGN(const uint64_t removed, AskEach(What::kRemove, found.names));
    removal.removed += removed;
    page = std::move(found.next);
    if (removal.done && MonotonicNs() > removal.start_ns + store_.options.answer_ns) {
      const auto done = std::exchange(removal.done, nullptr);
      done(ErasedBy(removal, false));
    }
  } while (!page.empty());
  return {};
}

Result<TierErased> RemoteWriter::ForgetNames(Removal& removal) {
  const ForgetFacts& facts = *removal.forget;
  began_ns_ = MonotonicNs();
  KV_TRY(looker_.SyncOwner(*client_, removal.owner, waits_));
  WipedKey random;
  RemoteErased erased;
  {
    MutexLock lock(store_.mutex);
    const auto id = store_.owner_keys.Find(removal.owner);
    if (id) {
      erased.epoch = store_.at(*id).epoch;
      random = store_.owner_keys.key_of(*id);
    }
  }
  // There is no place for the owner, or its kept epoch is damaged: its names are not known.
  if (erased.epoch == 0) return EraseOwner(removal);
  // S3 answers a removal alike where there was nothing, so objects are counted before.
  const bool is_s3 = store_.options.address.s3.has_value();
  std::vector<std::string> names;
  const auto remove = [&]() -> Status {
    KV_ASSIGN(const uint64_t found, is_s3 ? AskEach(What::kFind, names) : Result<uint64_t>(0));
    KV_ASSIGN(const uint64_t removed, AskEach(What::kRemove, names));
    erased.records += is_s3 ? found : removed;
    names.clear();
    return {};
  };
  const std::string owner = store_.keys.OwnerName(removal.owner);
  for (const BlockKey& key : facts.keys) {
    for (RecordName part : facts.parts) {
      part.key = key;
      names.push_back(RemoteName(owner, random, part));
      if (names.size() == kNamesAtOnce) KV_TRY(remove());
    }
  }
  KV_TRY(remove());
  return TierErased{.blocks = erased.records,
                    .bytes = erased.records * store_.options.value_bytes(),
                    .remote = erased};
}

Result<uint64_t> RemoteWriter::AskEach(StoreRequest::What what,
                                       std::span<const std::string> names) {
  uint64_t num_done = 0;
  while (!names.empty()) {
    const auto some = names.first(std::min(names.size(), kNamesAtOnce));
    names = names.subspan(some.size());
    began_ns_ = MonotonicNs();
    for (const std::string& name : some) {
      KV_TRY(client_->Start({.what = what, .name = name}, waits_));
    }
    for (size_t i = 0; i < some.size(); ++i) {
      KV_ASSIGN(const StoreReply reply, client_->Next(waits_));
      began_ns_ = MonotonicNs();
      num_done += reply.is_done();
      if (!reply.is_refused()) continue;
      client_->Close();  // and what was started with it
      return Fail(Code::kUnavailable, "{}", reply.words);
    }
  }
  return num_done;
}

}  // namespace kvasir
