#include "remote/remote_writer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/random_bytes.h"
#include "base/result.h"

namespace kvasir {

std::optional<WriteRefusal> RemoteWriter::Refusal(const RecordFacts& facts) {
  if (store_.options.mode == RemoteMode::kRead || store_.state == RemoteStore::State::kOff) {
    return WriteRefusal::kOff;
  }
  if (store_.state == RemoteStore::State::kConnecting) return WriteRefusal::kNoBuffer;
  const auto owner = store_.owner_keys.Find(facts.owner);
  if (!owner || store_.at(*owner).is_erasing() || store_.at(*owner).num_forgets > 0) {
    return WriteRefusal::kOff;
  }
  if (store_.at(*owner).awaits_erase) return WriteRefusal::kNoBuffer;
  if (store_.at(*owner).epoch == 0) {
    store_.at(*owner).wants_sync = true;
    store_.looker_wake.notify_one();
    return WriteRefusal::kNoBuffer;
  }
  const RemoteNames::Entry* const known = store_.names.Find(facts.name);
  if (known != nullptr && known->IsKnown(store_.NowS())) return WriteRefusal::kKnown;
  if (facts.after && store_.names.Find(*facts.after) == nullptr) return WriteRefusal::kOff;
  if (store_.IsOverDaily(facts.used_again)) return WriteRefusal::kBudget;
  if (store_.num_writes >= store_.num_buffers / 2) return WriteRefusal::kNoBuffer;
  return std::nullopt;
}

tl::expected<WriteId, WriteRefusal> RemoteWriter::Begin(const RecordFacts& facts) {
  RecordSalt salt;
  if (!FillRandom(salt)) return tl::unexpected(WriteRefusal::kOff);
  MutexLock lock(store_.mutex);
  if (const auto refusal = Refusal(facts)) return tl::unexpected(*refusal);
  const std::optional<uint32_t> index = store_.FreeBuffer();
  if (!index) return tl::unexpected(WriteRefusal::kNoBuffer);
  const OwnerId owner = *store_.owner_keys.Find(facts.owner);
  RemoteNames::Entry* const entry = store_.names.Put(facts.name, owner);
  if (entry == nullptr) return tl::unexpected(WriteRefusal::kNoBuffer);
  entry->is_writing = true;
  store_.buffers[*index] = {.use = RemoteBuffer::Use::kSealing, .name = facts.name, .owner = owner};
  ++store_.num_writes;
  store_.next_buffer = *index + 1;
  WriteValueFacts(store_.options.shape, store_.options.identity, facts, salt,
                  store_.ValueOf(*index));
  return WriteId{*index};
}

void RemoteWriter::Seal(WriteId write, std::span<const std::byte> payload) {
  const auto index = static_cast<uint32_t>(write);
  WipedKey random;
  std::string owner_name;
  {
    MutexLock lock(store_.mutex);
    const RemoteBuffer& out = store_.buffers[index];
    KV_CHECK(out.use == RemoteBuffer::Use::kSealing);
    if (out.is_erased) return;
    random = store_.owner_keys.key_of(out.owner);
    owner_name = store_.at(out.owner).name;
  }
  const std::string name = RemoteName(owner_name, random, store_.buffers[index].name);
  const bool sealed = SealValue({.shape = store_.options.shape,
                                 .identity = store_.options.identity,
                                 .random = random,
                                 .name = name},
                                payload, store_.ValueOf(index));
  MutexLock lock(store_.mutex);
  store_.buffers[index].is_bad = !sealed;
}

void RemoteWriter::End(WriteId write) {
  const auto index = static_cast<uint32_t>(write);
  {
    MutexLock lock(store_.mutex);
    RemoteBuffer& out = store_.buffers[index];
    KV_CHECK(out.use == RemoteBuffer::Use::kSealing);
    if (out.is_erased || out.is_bad) return store_.EndWrite(index, false);
    out.use = RemoteBuffer::Use::kQueued;
    out.number = ++store_.last_write;
    store_.writes.PushBack(index);
  }
  store_.writer_wake.notify_one();
}

void RemoteWriter::Flush(std::function<void(Result<TierFlushed>)> done) {
  {
    MutexLock lock(store_.mutex);
    flushes_.push_back({.number = store_.last_write,
                        .stored_before = store_.stats.written_blocks,
                        .failed_before = store_.num_failed,
                        .done = std::move(done)});
  }
  store_.writer_wake.notify_one();
}

bool RemoteWriter::WaitForWork() {
  MutexLock lock(store_.mutex);
  for (;;) {
    if (store_.is_stopping.load(std::memory_order_relaxed)) return false;
    const uint64_t now = MonotonicNs();
    const bool is_due = std::ranges::any_of(
        removals_, [&](const Removal& one) { return one.done || one.due_ns <= now; });
    if (!store_.writes.empty() || !flushes_.empty() || is_due) return true;
    lock.WaitFor(store_.writer_wake, std::chrono::milliseconds(500));
  }
}

void RemoteWriter::Loop() {
  while (WaitForWork()) {
    const std::vector<uint32_t> batch = Connect() ? TakeBatch() : std::vector<uint32_t>();
    if (!batch.empty()) {
      WriteBatch(batch);
    } else if (!connection_.is_open()) {
      DropQueued();
    }
    AnswerFlushes();
    RemoveDue();
  }
  DropQueued();
  AnswerFlushes();
  std::deque<Removal> left;
  {
    MutexLock lock(store_.mutex);
    left.swap(removals_);
  }
  for (const Removal& removal : left) {
    if (removal.done) removal.done(Fail(Code::kUnavailable, "remote tier: the process ends"));
  }
}

// Returns whether there is a connection of a tier that is on.
bool RemoteWriter::Connect() {
  if (!store_.is_on()) {
    connection_.Close();
    return false;
  }
  connection_.CloseStale();
  if (connection_.is_open()) return true;
  began_ns_ = MonotonicNs();
  const auto waits = [this, most_ns = began_ns_ + 500'000'000] {
    return !store_.is_stopping.load(std::memory_order_relaxed) && MonotonicNs() < most_ns;
  };
  const Status opened = store_.Connect(connection_, waits);
  if (!opened) store_.TurnOff(opened.error().message);
  return opened.has_value();
}

std::vector<uint32_t> RemoteWriter::TakeBatch() {
  std::vector<uint32_t> batch;
  MutexLock lock(store_.mutex);
  while (!store_.writes.empty() &&
         (batch.empty() || (batch.size() + 1) * store_.options.value_bytes() <= kUnsentBytes)) {
    const uint32_t index = store_.writes.PopFront();
    if (store_.buffers[index].is_erased) {
      store_.EndWrite(index, false);
      continue;
    }
    batch.push_back(index);
  }
  return batch;
}

void RemoteWriter::WriteBatch(const std::vector<uint32_t>& batch) {
  const std::string ttl = std::to_string(store_.options.ttl_hours * 3600);
  std::vector<std::string> heads(batch.size());
  {
    MutexLock lock(store_.mutex);
    for (size_t i = 0; i < batch.size(); ++i) {
      const RemoteBuffer& out = store_.buffers[batch[i]];
      if (out.is_erased) continue;  // its key is another one by now
      const std::string name =
          RemoteName(store_.at(out.owner).name, store_.owner_keys.key_of(out.owner), out.name);
      heads[i] = fmt::format("*5\r\n$3\r\nSET\r\n${}\r\n{}\r\n${}\r\n", name.size(), name,
                             store_.options.value_bytes());
    }
  }
  const std::string tail = fmt::format("\r\n$2\r\nEX\r\n${}\r\n{}\r\n", ttl.size(), ttl);
  Status done;
  began_ns_ = MonotonicNs();
  for (size_t i = 0; i < batch.size() && done; ++i) {
    if (heads[i].empty()) continue;
    const std::array<std::span<const std::byte>, 3> pieces{std::as_bytes(std::span(heads[i])),
                                                           store_.ValueOf(batch[i]),
                                                           std::as_bytes(std::span(tail))};
    done = connection_.Send(pieces, waits_);
  }
  std::string refused;
  for (size_t i = 0; i < batch.size(); ++i) {
    bool stored = false;
    if (done && !heads[i].empty()) {
      const auto reply = connection_.Read({}, waits_);
      if (!reply) {
        done = tl::unexpected(reply.error());
      } else {
        stored = reply->is_ok();
        if (!stored) refused = reply->text;
        usual_.Observe(MonotonicNs() - began_ns_);
        began_ns_ = MonotonicNs();
      }
    }
    MutexLock lock(store_.mutex);
    store_.EndWrite(batch[i], stored);
  }
  if (!done) {
    connection_.Close();
    store_.CountFault(done.error());
  }
  if (!refused.empty()) store_.TurnOff(refused);
  store_.progress.Call();
}

void RemoteWriter::DropQueued() {
  {
    MutexLock lock(store_.mutex);
    if (store_.state == RemoteStore::State::kConnecting &&
        !store_.is_stopping.load(std::memory_order_relaxed)) {
      return;
    }
    while (!store_.writes.empty()) store_.EndWrite(store_.writes.PopFront(), false);
  }
  store_.progress.Call();
}

void RemoteWriter::AnswerFlushes() {
  for (;;) {
    Flushing flush;
    Result<TierFlushed> answer = TierFlushed{};
    {
      MutexLock lock(store_.mutex);
      if (flushes_.empty()) return;
      for (uint32_t i = 0; i < store_.writes.size(); ++i) {
        if (store_.buffers[store_.writes.at(i)].number <= flushes_.front().number) return;
      }
      flush = std::move(flushes_.front());
      flushes_.pop_front();
      if (store_.state != RemoteStore::State::kOn) {
        answer =
            Fail(Code::kUnavailable, "remote tier: {}: {}", ToString(store_.state), store_.reason);
      } else if (const uint64_t failed = store_.num_failed - flush.failed_before; failed > 0) {
        answer = Fail(Code::kUnavailable, "remote tier: {} blocks did not reach the store", failed);
      } else {
        answer->blocks = store_.stats.written_blocks - flush.stored_before;
        answer->bytes = answer->blocks * store_.options.value_bytes();
      }
    }
    flush.done(std::move(answer));
  }
}

}  // namespace kvasir
