#include "remote/remote_writer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "base/sizes.h"

namespace kvasir {

RemoteWriter::RemoteWriter(RemoteStore& store, RemoteLooker& looker)
    : store_(store),
      looker_(looker),
      note_(store.options.mode == RemoteMode::kRead ? "" : store.options.epochs,
            DailyNote::AheadOf(store.options.daily_bytes.value_or(~uint64_t{0}))),
      notes_(store.options.mode == RemoteMode::kRead ? "" : store.options.epochs) {
  {
    MutexLock lock(store_.mutex);
    store_.figures.BeginDay();
    store_.figures.stats.written_today_bytes = note_.BytesOf(store_.figures.written_day);
  }
  for (const Digest& owner : notes_.All()) Erase(owner, nullptr);
}

std::optional<WriteRefusal> RemoteWriter::Refusal(const RecordFacts& facts) {
  if (store_.options.mode == RemoteMode::kRead || store_.state.now == RemoteStore::State::kOff) {
    return WriteRefusal::kOff;
  }
  if (store_.state.now == RemoteStore::State::kConnecting) return WriteRefusal::kNoBuffer;
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
  if (store_.queues.num_writes >= store_.buffers.size() / 2) return WriteRefusal::kNoBuffer;
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
  ++store_.queues.num_writes;
  store_.queues.next = *index + 1;
  WriteValueFacts(store_.options.shape, store_.options.identity, facts, salt,
                  store_.buffers.ValueOf(*index));
  return WriteId{*index};
}

void RemoteWriter::Seal(WriteId write, std::span<const std::byte> payload) {
  const auto index = static_cast<uint32_t>(write);
  WipedKey random;
  std::string owner_name;
  bool compresses;
  {
    MutexLock lock(store_.mutex);
    const RemoteBuffer& out = store_.buffers[index];
    KV_CHECK(out.use == RemoteBuffer::Use::kSealing);
    if (out.is_erased) return;
    random = store_.owner_keys.key_of(out.owner);
    owner_name = store_.at(out.owner).name;
    compresses = store_.Compresses();
  }
  const std::string name = RemoteName(owner_name, random, store_.buffers[index].name);
  const std::optional<uint64_t> bytes = SealValue({.shape = store_.options.shape,
                                                   .identity = store_.options.identity,
                                                   .random = random,
                                                   .name = name},
                                                  payload, store_.buffers.ValueOf(index),
                                                  compresses ? &store_.buffers.codecs() : nullptr);
  MutexLock lock(store_.mutex);
  store_.buffers[index].is_bad = !bytes;
  store_.buffers[index].bytes = bytes.value_or(0);
}

void RemoteWriter::End(WriteId write) {
  const auto index = static_cast<uint32_t>(write);
  {
    MutexLock lock(store_.mutex);
    RemoteBuffer& out = store_.buffers[index];
    KV_CHECK(out.use == RemoteBuffer::Use::kSealing);
    if (out.is_erased || out.is_bad) return store_.EndWrite(index, false);
    out.use = RemoteBuffer::Use::kQueued;
    out.number = ++store_.queues.last_write;
    store_.queues.writes.PushBack(index);
  }
  store_.writer_wake.notify_one();
}

void RemoteWriter::Flush(std::function<void(Result<TierFlushed>)> done) {
  {
    MutexLock lock(store_.mutex);
    flushes_.push_back({.number = store_.queues.last_write,
                        .stored_before = store_.figures.stats.written_blocks,
                        .bytes_before = store_.figures.stats.written_bytes,
                        .failed = told_failed_,
                        .done = std::move(done)});
  }
  store_.writer_wake.notify_one();
}

bool RemoteWriter::WaitForWork() {
  MutexLock lock(store_.mutex);
  for (;;) {
    if (store_.is_stopping.load(std::memory_order_relaxed)) return false;
    const bool is_due = std::ranges::any_of(
        removals_, [&](const Removal& one) KV_REQUIRES(store_.mutex) { return IsDue(one); });
    if (!store_.queues.writes.empty() || !flushes_.empty() || is_due) return true;
    lock.WaitFor(store_.writer_wake, std::chrono::milliseconds(500));
  }
}

void RemoteWriter::Loop() {
  while (WaitForWork()) {
    const bool writes = Connect() && store_.is_on();
    const std::vector<uint32_t> batch = writes ? TakeBatch() : std::vector<uint32_t>();
    if (!batch.empty()) {
      WriteBatch(batch);
    } else if (!writes) {
      DropQueued();
    }
    AnswerFlushes();
    RemoveDue();
  }
  DropQueued();
  AnswerFlushes();
  std::deque<Removal> left;
  uint64_t day = 0, today_bytes = 0;
  {
    MutexLock lock(store_.mutex);
    left.swap(removals_);
    store_.figures.BeginDay();
    day = store_.figures.written_day;
    today_bytes = store_.figures.stats.written_today_bytes;
  }
  note_.Settle(day, today_bytes);
  for (const Removal& removal : left) {
    notes_.Add(store_.keys.OwnerName(removal.owner), removal.owner);
    if (removal.done) removal.done(Fail(Code::kUnavailable, "remote tier: the process ends"));
  }
}

// Returns whether the store removes at least, and its client is open.
bool RemoteWriter::Connect() {
  if (!store_.Removes()) {
    client_->Close();
    return false;
  }
  client_->CloseStale();
  if (client_->is_open()) return true;
  began_ns_ = MonotonicNs();
  const auto waits = [this, most_ns = began_ns_ + 500'000'000] {
    return !store_.is_stopping.load(std::memory_order_relaxed) && MonotonicNs() < most_ns;
  };
  const Status opened = store_.Connect(*client_, waits);
  if (!opened) store_.TurnOff(opened.error().message);
  return opened.has_value();
}

std::vector<uint32_t> RemoteWriter::TakeBatch() {
  std::vector<uint32_t> batch;
  uint64_t bytes = 0;
  MutexLock lock(store_.mutex);
  while (!store_.queues.writes.empty() &&
         (batch.empty() || bytes + store_.options.value_bytes() <= kUnsentBytes)) {
    const uint32_t index = store_.queues.writes.PopFront();
    if (store_.buffers[index].is_erased) {
      store_.EndWrite(index, false);
      continue;
    }
    batch.push_back(index);
    bytes += store_.buffers[index].bytes;
  }
  return batch;
}

void RemoteWriter::WriteBatch(const std::vector<uint32_t>& batch) {
  std::vector<StoreRequest> requests;
  std::vector<uint32_t> left = batch;  // that have not ended
  uint64_t day = 0, today_bytes = 0;
  {
    MutexLock lock(store_.mutex);
    store_.figures.BeginDay();
    day = store_.figures.written_day;
    today_bytes = store_.figures.stats.written_today_bytes;
    for (const uint32_t index : batch) {
      const RemoteBuffer& out = store_.buffers[index];
      if (out.is_erased) continue;  // its key is another one by now
      requests.push_back({.what = StoreRequest::What::kPut,
                          .id = index,
                          .name = RemoteName(store_.at(out.owner).name,
                                             store_.owner_keys.key_of(out.owner), out.name),
                          .value = store_.buffers.ValueOf(index).first(out.bytes),
                          .ttl_s = store_.options.ttl_hours * 3600});
      today_bytes += out.bytes;
    }
  }
  note_.Cover(day, today_bytes);
  const auto end = [&](uint32_t index, bool stored) {
    std::erase(left, index);
    MutexLock lock(store_.mutex);
    store_.EndWrite(index, stored);
  };
  Status done;
  std::string refused, passing;
  const size_t num_requests = requests.size();
  for (StoreRequest& request : requests) {
    if (!done) break;
    began_ns_ = MonotonicNs();  // the usual time is that of one value
    done = client_->Start(std::move(request), waits_);
  }
  for (size_t i = 0; i < num_requests && done; ++i) {
    const auto reply = client_->Next(waits_);
    if (!reply) {
      done = tl::unexpected(reply.error());
      continue;
    }
    usual_.Observe(MonotonicNs() - began_ns_);
    began_ns_ = MonotonicNs();
    if (!reply->is_done()) (reply->is_passing ? passing : refused) = reply->words;
    end(static_cast<uint32_t>(reply->id), reply->is_done());
  }
  while (!left.empty()) end(left.front(), false);
  if (!done) {
    client_->Close();
    store_.CountFault(done.error());
  }
  if (!passing.empty()) store_.CountFault({Code::kUnavailable, passing});
  if (!refused.empty()) store_.TurnOff(refused);
  store_.progress.Call();
}

void RemoteWriter::DropQueued() {
  {
    MutexLock lock(store_.mutex);
    if (store_.state.now == RemoteStore::State::kConnecting &&
        !store_.is_stopping.load(std::memory_order_relaxed)) {
      return;
    }
    while (!store_.queues.writes.empty()) store_.EndWrite(store_.queues.writes.PopFront(), false);
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
      for (uint32_t i = 0; i < store_.queues.writes.size(); ++i) {
        if (store_.buffers[store_.queues.writes.at(i)].number <= flushes_.front().number) return;
      }
      flush = std::move(flushes_.front());
      flushes_.pop_front();
      if (store_.state.now != RemoteStore::State::kOn) {
        answer = Fail(Code::kUnavailable, "remote tier: {}: {}", ToString(store_.state.now),
                      store_.state.reason);
      } else if (const uint64_t failed = store_.queues.num_failed - flush.failed; failed > 0) {
        told_failed_ = store_.queues.num_failed;
        answer = Fail(Code::kUnavailable, "remote tier: {} did not reach the store",
                      CountText(failed, "block"));
      } else {
        answer->blocks = store_.figures.stats.written_blocks - flush.stored_before;
        answer->bytes = store_.figures.stats.written_bytes - flush.bytes_before;
      }
    }
    flush.done(std::move(answer));
  }
}

}  // namespace kvasir
