// RemoteWriter: erases and forgets.
#include <openssl/crypto.h>

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

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

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
      if (const auto id = store_.owner_keys.Find(removal.owner)) {
        RemoteOwner& owner = store_.at(*id);
        if (removal.forget) {
          --owner.num_forgets;
        } else {
          owner.is_erasing = false;
        }
      }
    }
    const auto done = std::exchange(removal.done, nullptr);
    if (!erased && !reads_only) {
      removal.due_ns = MonotonicNs() + kRetryNs;
      MutexLock lock(store_.mutex);
      removals_.push_back(std::move(removal));
    }
    if (done) done(std::move(erased));
  }
}

// Writes the owner's object with the next epoch, so that nothing of before can be opened any more.
Result<OwnerEpoch> RemoteWriter::RaiseEpoch(const Digest& owner) {
  const std::string name = store_.keys.OwnerName(owner);
  OwnerObject object;
  began_ns_ = MonotonicNs();
  KV_ASSIGN(const RedisReply reply, connection_.Ask({"GET", name}, object, Waits()));
  if (reply.kind == RedisReply::Kind::kError) return Fail(Code::kUnavailable, "{}", reply.text);
  OwnerEpoch next;
  if (reply.kind == RedisReply::Kind::kBulk) {
    const auto stored = store_.keys.OpenOwner(
        name, std::span<const std::byte>(object).first(static_cast<size_t>(reply.number)));
    if (stored) next.epoch = stored->epoch;
  }
  {
    MutexLock lock(store_.mutex);
    const auto id = store_.owner_keys.Find(owner);
    if (id) next.epoch = std::max(next.epoch, store_.at(*id).epoch);
    next.epoch = std::max(next.epoch, store_.epochs.Read(name));
    if (id && FaultActive(Fault::kKeptEpoch)) {
      return OwnerEpoch{store_.at(*id).epoch, store_.owner_keys.KeyOf(*id).key};
    }
  }
  ++next.epoch;
  RecordSalt salt;
  KV_TRY(FillRandom(next.random));
  KV_TRY(FillRandom(salt));
  const auto sealed = store_.keys.SealOwner(name, next, salt);
  if (!sealed) return Fail(Code::kExhausted, "no memory to seal an owner object");
  KV_ASSIGN(const RedisReply set, connection_.Ask({"SET", name, TextOf(*sealed)}, {}, Waits()));
  if (!set.is_ok()) return Fail(Code::kUnavailable, "{}", set.text);
  store_.epochs.Write(name, next.epoch);
  return next;
}

Result<TierErased> RemoteWriter::EraseOwner(Removal& removal) {
  KV_ASSIGN(OwnerEpoch epoch, RaiseEpoch(removal.owner));
  {
    MutexLock lock(store_.mutex);
    if (const auto id = store_.owner_keys.Find(removal.owner)) store_.SetEpoch(*id, epoch);
  }
  OPENSSL_cleanse(epoch.random.data(), epoch.random.size());
  KV_ASSIGN(const uint64_t records, RemoveNames(removal, epoch.epoch));
  return TierErased{.blocks = records,
                    .bytes = records * store_.options.value_bytes(),
                    .remote = RemoteErased{epoch.epoch, records, true}};
}

// Removes all records of an owner. After 10 s it answers, and goes on.
Result<uint64_t> RemoteWriter::RemoveNames(Removal& removal, uint64_t epoch) {
  const std::string pattern = store_.keys.OwnerName(removal.owner) + "/*";
  std::string cursor = "0";
  uint64_t records = 0;
  std::array<std::byte, 256> bytes;
  do {
    began_ns_ = MonotonicNs();
    KV_ASSIGN(const RedisReply pair,
              connection_.Ask({"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"}, {}, Waits()));
    if (pair.kind == RedisReply::Kind::kError) return Fail(Code::kUnavailable, "{}", pair.text);
    KV_ASSIGN(const RedisReply next, connection_.Read(bytes, Waits()));
    cursor = TextOf(std::span(bytes).first(static_cast<size_t>(next.number)));
    KV_ASSIGN(const RedisReply list, connection_.Read({}, Waits()));
    if (pair.number != 2 || next.kind != RedisReply::Kind::kBulk ||
        list.kind != RedisReply::Kind::kArray) {
      connection_.Close();
      return Fail(Code::kCorruption, "what the store sent is not a reply to SCAN");
    }
    std::vector<std::string> names;
    for (int64_t i = 0; i < list.number; ++i) {
      KV_ASSIGN(const RedisReply name, connection_.Read(bytes, Waits()));
      names.emplace_back(TextOf(std::span(bytes).first(static_cast<size_t>(name.number))));
    }
    KV_ASSIGN(const uint64_t removed, Unlink(names));
    records += removed;
    if (removal.done && MonotonicNs() > removal.start_ns + kAnswerNs) {
      const auto done = std::exchange(removal.done, nullptr);
      done(TierErased{.blocks = records,
                      .bytes = records * store_.options.value_bytes(),
                      .remote = RemoteErased{epoch, records, false}});
    }
  } while (cursor != "0");
  return records;
}

Result<TierErased> RemoteWriter::ForgetNames(const Removal& removal) {
  const ForgetFacts& facts = *removal.forget;
  began_ns_ = MonotonicNs();
  KV_TRY(looker_.SyncOwner(connection_, removal.owner, Waits()));
  AesKey random;
  RemoteErased erased;
  {
    MutexLock lock(store_.mutex);
    const auto id = store_.owner_keys.Find(removal.owner);
    if (!id || store_.at(*id).epoch == 0) return TierErased{.remote = erased};
    erased.epoch = store_.at(*id).epoch;
    random = store_.owner_keys.KeyOf(*id).key;
  }
  std::vector<BlockKey> kept = facts.kept ? facts.kept() : std::vector<BlockKey>();
  std::ranges::sort(kept);
  std::vector<std::string> names;
  for (const BlockKey& key : facts.keys) {
    if (std::ranges::binary_search(kept, key)) continue;
    for (RecordName part : facts.parts) {
      part.key = key;
      names.push_back(RemoteName(store_.keys.OwnerName(removal.owner), random, part));
    }
  }
  OPENSSL_cleanse(random.data(), random.size());
  KV_ASSIGN(erased.records, Unlink(names));
  return TierErased{.blocks = erased.records,
                    .bytes = erased.records * store_.options.value_bytes(),
                    .remote = erased};
}

// Removes these names, and returns how many there were.
Result<uint64_t> RemoteWriter::Unlink(std::span<const std::string> names) {
  constexpr size_t kAtOnce = 500;
  uint64_t removed = 0;
  while (!names.empty()) {
    const auto some = names.first(std::min(names.size(), kAtOnce));
    names = names.subspan(some.size());
    std::string text;
    for (const std::string& name : some) AppendCommand(text, {"UNLINK", name});
    began_ns_ = MonotonicNs();
    KV_TRY(connection_.Send(text, Waits()));
    for (size_t i = 0; i < some.size(); ++i) {
      KV_ASSIGN(const RedisReply reply, connection_.Read({}, Waits()));
      if (reply.kind == RedisReply::Kind::kError) {
        connection_.Close();
        return Fail(Code::kUnavailable, "{}", reply.text);
      }
      removed += static_cast<uint64_t>(reply.number);
    }
  }
  return removed;
}

}  // namespace kvasir
