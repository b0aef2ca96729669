// RemoteWriter: erases and forgets.
#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "base/fault.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "remote/remote_writer.h"

namespace kvasir {
namespace {

constexpr size_t kUnlinks = 500;         // commands at once
constexpr int64_t kMostNames = 100'000;  // of a page of SCAN, which asks for 1,000

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
    if (one.forget) keys += one.forget->keys.size();
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

// Does what is to be removed, as far as it is due. It reports what fails, and tries it again in a
// minute.
void RemoteWriter::RemoveDue() {
  for (;;) {
    Removal removal;
    {
      MutexLock lock(store_.mutex);
      const auto due = std::ranges::find_if(
          removals_, [&](const Removal& one) { return one.done || one.due_ns <= MonotonicNs(); });
      if (due == removals_.end()) return;
      removal = std::move(*due);
      removals_.erase(due);
    }
    // A forget that waits holds the keys alone.
    if (removal.forget && removal.forget->kept) LeaveKept(&*removal.forget);
    const bool reads_only = store_.options.mode == RemoteMode::kRead;
    Result<TierErased> erased =
        Fail(Code::kIoError, "remote tier: {} does not answer; it is tried again each minute",
             store_.options.address.text());
    if (reads_only) {
      erased = Fail(Code::kIoError,
                    "remote tier: with --remote-mode read nothing is erased in the store");
    } else if (Connect()) {
      erased = removal.forget ? ForgetNames(removal) : EraseOwner(removal);
      if (!erased) {
        store_.CountFault(erased.error());
        erased = Fail(Code::kIoError, "remote tier: {}; it is tried again each minute",
                      erased.error().message);
      }
    }
    if (erased && !reads_only) {
      MutexLock lock(store_.mutex);
      store_.stats.erased_blocks += erased->blocks;
      Uncount(&removal);
    }
    const auto done = std::exchange(removal.done, nullptr);
    if (!erased && !reads_only) {
      removal.due_ns = MonotonicNs() + kRetryNs;
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

// Writes the owner's object with the next epoch, so that nothing of before can be opened any more.
// Epochs are times, so that a machine does not take one that others have seen after the store lost
// its data. Of two machines that erase at once the later one takes the higher epoch.
Result<OwnerEpoch> RemoteWriter::RaiseEpoch(const Digest& owner) {
  const std::string name = store_.keys.OwnerName(owner);
  OwnerEpoch known{.epoch = store_.epochs.Read(name)};
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
  KV_ASSIGN(const StoredOwner raised, ChangeOwner(connection_, store_.keys, name, next, waits_));
  store_.epochs.Write(name, raised.epoch->epoch);
  return *raised.epoch;
}

Result<TierErased> RemoteWriter::EraseOwner(Removal& removal) {
  if (removal.epoch == 0) {
    KV_ASSIGN(const OwnerEpoch epoch, RaiseEpoch(removal.owner));
    removal.epoch = epoch.epoch;
    MutexLock lock(store_.mutex);
    if (const auto id = store_.owner_keys.Find(removal.owner)) store_.SetEpoch(*id, epoch);
  }
  KV_ASSIGN(const uint64_t records, RemoveNames(removal));
  return TierErased{.blocks = records,
                    .bytes = records * store_.options.value_bytes(),
                    .remote = RemoteErased{removal.epoch, records, true}};
}

// Removes all records of an owner. After 10 s it answers, and goes on.
Result<uint64_t> RemoteWriter::RemoveNames(Removal& removal) {
  const std::string owner_name = store_.keys.OwnerName(removal.owner);
  std::string cursor = "0";
  uint64_t records = 0;
  do {
    if (store_.is_stopping.load(std::memory_order_relaxed)) {
      return Fail(Code::kCancelled, "the process ends");
    }
    KV_ASSIGN(cursor, ScanPage(owner_name, cursor, &records));
    if (removal.done && MonotonicNs() > removal.start_ns + kAnswerNs) {
      const auto done = std::exchange(removal.done, nullptr);
      done(TierErased{.blocks = records,
                      .bytes = records * store_.options.value_bytes(),
                      .remote = RemoteErased{removal.epoch, records, false}});
    }
  } while (cursor != "0");
  return records;
}

// Removes the names of one page of SCAN, and returns the cursor of the next one. A page may have
// any number of names: they are removed while they come.
Result<std::string> RemoteWriter::ScanPage(const std::string& owner_name, const std::string& cursor,
                                           uint64_t* removed) {
  const auto wrong = [&] {
    connection_.Close();
    return Fail(Code::kCorruption, "what the store sent is not a reply to SCAN");
  };
  const std::string below = owner_name + "/";
  began_ns_ = MonotonicNs();
  KV_ASSIGN(const RedisReply pair,
            connection_.Ask({"SCAN", cursor, "MATCH", below + "*", "COUNT", "1000"}, {}, waits_));
  if (pair.kind == RedisReply::Kind::kError) return Fail(Code::kUnavailable, "{}", pair.text);
  if (pair.kind != RedisReply::Kind::kArray || pair.number != 2) return wrong();
  std::array<std::byte, 256> bytes;
  KV_ASSIGN(const std::string_view at, connection_.ReadBulk(bytes, waits_));
  const std::string next(at);
  KV_ASSIGN(const RedisReply list, connection_.Read({}, waits_));
  if (list.kind != RedisReply::Kind::kArray || list.number > kMostNames) return wrong();
  std::vector<std::string> names;
  size_t sent = 0;
  for (int64_t i = 0; i < list.number; ++i) {
    if (store_.is_stopping.load(std::memory_order_relaxed)) {
      connection_.Close();
      return Fail(Code::kCancelled, "the process ends");
    }
    KV_ASSIGN(const std::string_view name, connection_.ReadBulk(bytes, waits_));
    if (!name.starts_with(below)) return wrong();
    names.emplace_back(name);
    if (names.size() < kUnlinks) continue;
    KV_TRY(SendUnlinks(names));
    sent += names.size();
    names.clear();
  }
  KV_TRY(SendUnlinks(names));
  KV_ASSIGN(const uint64_t gone, ReadUnlinked(sent + names.size()));
  *removed += gone;
  return next;
}

Result<TierErased> RemoteWriter::ForgetNames(const Removal& removal) {
  const ForgetFacts& facts = *removal.forget;
  began_ns_ = MonotonicNs();
  KV_TRY(looker_.SyncOwner(connection_, removal.owner, waits_));
  WipedKey random;
  RemoteErased erased;
  {
    MutexLock lock(store_.mutex);
    const auto id = store_.owner_keys.Find(removal.owner);
    if (!id || store_.at(*id).epoch == 0) return TierErased{.remote = erased};
    erased.epoch = store_.at(*id).epoch;
    random = store_.owner_keys.key_of(*id);
  }
  std::vector<std::string> names;
  for (const BlockKey& key : facts.keys) {
    for (RecordName part : facts.parts) {
      part.key = key;
      names.push_back(RemoteName(store_.keys.OwnerName(removal.owner), random, part));
    }
  }
  for (std::span<const std::string> left = names; !left.empty();) {
    const auto some = left.first(std::min(left.size(), kUnlinks));
    left = left.subspan(some.size());
    KV_TRY(SendUnlinks(some));
    KV_ASSIGN(const uint64_t removed, ReadUnlinked(some.size()));
    erased.records += removed;
  }
  return TierErased{.blocks = erased.records,
                    .bytes = erased.records * store_.options.value_bytes(),
                    .remote = erased};
}

Status RemoteWriter::SendUnlinks(std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) AppendCommand(text, {"UNLINK", name});
  began_ns_ = MonotonicNs();
  return connection_.Send(text, waits_);
}

Result<uint64_t> RemoteWriter::ReadUnlinked(size_t commands) {
  uint64_t removed = 0;
  for (size_t i = 0; i < commands; ++i) {
    KV_ASSIGN(const RedisReply reply, connection_.Read({}, waits_));
    if (reply.kind != RedisReply::Kind::kInteger || reply.number < 0) {
      connection_.Close();
      const bool is_error = reply.kind == RedisReply::Kind::kError;
      return Fail(is_error ? Code::kUnavailable : Code::kCorruption, "{}",
                  is_error ? reply.text : "what the store sent is not a reply to UNLINK");
    }
    removed += static_cast<uint64_t>(reply.number);
  }
  return removed;
}

}  // namespace kvasir
