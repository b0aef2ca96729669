#include "remote/remote_reader.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace kvasir {

std::optional<ReadId> RemoteReader::Begin(const RecordName& name) {
  using Use = RemoteBuffer::Use;
  std::optional<uint32_t> index;
  {
    MutexLock lock(store_.mutex);
    const RemoteNames::Entry* const entry = store_.names.Find(name);
    if (store_.state.now != RemoteStore::State::kOn || entry == nullptr ||
        !entry->IsFresh(store_.NowS()) || !store_.at(entry->owner).is_usable()) {
      return std::nullopt;
    }
    for (uint32_t i = 0; store_.queues.num_reads > 0 && i < store_.buffers.size(); ++i) {
      RemoteBuffer& shared = store_.buffers[i];
      const bool is_same = (shared.use == Use::kReading || shared.use == Use::kArrived) &&
                           shared.name == name && !shared.is_erased;
      if (!is_same) continue;
      ++shared.refs;
      return ReadId{i};
    }
    index = store_.FreeBuffer();
    if (!index) return std::nullopt;
    store_.buffers[*index] = {.use = Use::kReading, .name = name, .owner = entry->owner, .refs = 1};
    ++store_.queues.num_reads;
    store_.queues.next = *index + 1;
    store_.queues.reads.PushBack(*index);
  }
  store_.reader_wake.notify_one();
  return ReadId{*index};
}

bool RemoteReader::HasRoom() const {
  MutexLock lock(store_.mutex);
  return store_.queues.num_reads + store_.queues.num_writes < store_.buffers.size();
}

ReadState RemoteReader::StateOf(ReadId read) const {
  MutexLock lock(store_.mutex);
  const RemoteBuffer& in = store_.buffers[static_cast<size_t>(read)];
  if (in.is_erased) return ReadState::kErased;
  if (in.use == RemoteBuffer::Use::kArrived) return ReadState::kArrived;
  if (in.use != RemoteBuffer::Use::kFailed) return ReadState::kReading;
  return in.ended;
}

bool RemoteReader::Unseal(ReadId read, const RecordFacts& facts,
                          std::span<std::byte> payload) const {
  const auto index = static_cast<uint32_t>(read);
  WipedKey random;
  std::string owner_name;
  uint64_t bytes;
  {
    MutexLock lock(store_.mutex);
    const RemoteBuffer& in = store_.buffers[index];
    const auto owner = store_.owner_keys.Find(facts.owner);
    if (in.use != RemoteBuffer::Use::kArrived || in.is_erased || owner != in.owner ||
        in.name != facts.name) {
      return false;
    }
    random = store_.owner_keys.key_of(*owner);
    owner_name = store_.at(*owner).name;
    bytes = in.bytes;
  }
  const std::string name = RemoteName(owner_name, random, facts.name);
  const bool is_right = UnsealValue({.shape = store_.options.shape,
                                     .identity = store_.options.identity,
                                     .random = random,
                                     .name = name},
                                    facts, store_.buffers.ValueOf(index).first(bytes), payload,
                                    &store_.buffers.codecs());
  MutexLock lock(store_.mutex);
  return is_right && !store_.buffers[index].is_erased;
}

void RemoteReader::End(ReadId read, ReadEnd end) {
  const auto index = static_cast<uint32_t>(read);
  MutexLock lock(store_.mutex);
  RemoteBuffer& in = store_.buffers[index];
  KV_CHECK(in.refs > 0);
  --in.refs;
  if (end == ReadEnd::kUsed) ++store_.figures.stats.read_blocks;
  if (end == ReadEnd::kDamaged && !in.is_erased && in.use == RemoteBuffer::Use::kArrived) {
    ++store_.figures.stats.fault_damaged;
    store_.names.DoubtOwner(in.owner);
    in.use = RemoteBuffer::Use::kFailed;
    in.ended = ReadState::kFailed;
  }
  if (in.refs > 0 || in.use == RemoteBuffer::Use::kReading) return;  // Loop frees it
  store_.FreeBufferOf(index);
}

bool RemoteReader::WaitForWork() {
  MutexLock lock(store_.mutex);
  while (store_.queues.reads.empty()) {
    if (store_.is_stopping.load(std::memory_order_relaxed)) return false;
    lock.Wait(store_.reader_wake);
  }
  return !store_.is_stopping.load(std::memory_order_relaxed);
}

void RemoteReader::Loop() {
  while (WaitForWork()) {
    client_->CloseStale();
    if (store_.is_on() && !client_->is_open()) {
      began_ns_ = MonotonicNs();
      const auto waits = [this, most_ns = began_ns_ + 500'000'000] {
        return !store_.is_stopping.load(std::memory_order_relaxed) && MonotonicNs() < most_ns;
      };
      const Status opened = store_.Connect(*client_, waits);
      if (!opened) store_.TurnOff(opened.error().message);
    }
    if (!store_.is_on() || !client_->is_open()) {
      FailAll();
      continue;
    }
    began_ns_ = MonotonicNs();
    do {
      Status sent;
      for (StoreRequest& request : TakeNext()) {
        if (sent) sent = client_->Start(std::move(request), waits_);
      }
      if (!sent) {
        FailAsked(sent.error());
      } else if (!asked_.empty()) {
        ReadNext();
      }
    } while (!asked_.empty());
  }
  FailAll();
}

std::vector<StoreRequest> RemoteReader::TakeNext() {
  std::vector<StoreRequest> requests;
  if (!client_->is_open()) return requests;
  const uint64_t most =
      std::max<uint64_t>(kUnreadBytes / store_.options.value_bytes(), 1);  // values at once
  MutexLock lock(store_.mutex);
  while (asked_.size() < most && !store_.queues.reads.empty()) {
    const uint32_t index = store_.queues.reads.PopFront();
    RemoteBuffer& in = store_.buffers[index];
    if (in.refs == 0 || in.is_erased) {
      store_.EndRead(index, ReadState::kFailed);
      continue;
    }
    StoreRequest& request = requests.emplace_back();
    request.id = index;
    request.name =
        RemoteName(store_.at(in.owner).name, store_.owner_keys.key_of(in.owner), in.name);
    request.into = store_.buffers.ValueOf(index);
    RemoteNames::Entry* const entry = store_.names.Find(in.name);
    const uint32_t now_s = store_.NowS();
    if (store_.options.mode == RemoteMode::kReadWrite && entry != nullptr && entry->IsDue(now_s)) {
      request.ttl_s = store_.options.ttl_hours * 3600;
      entry->refreshed_s = now_s;
    }
    asked_.push_back(index);
  }
  return requests;
}

void RemoteReader::FailAsked(const Error& error) {
  store_.CountFault(error);
  client_->Close();
  {
    MutexLock lock(store_.mutex);
    const bool is_damage = error.code == Code::kCorruption;  // it announces more than a record
    store_.figures.stats.fault_damaged += is_damage;
    for (const uint32_t buffer : asked_) {
      if (is_damage) store_.names.DoubtOwner(store_.buffers[buffer].owner);
      store_.EndRead(buffer, is_damage ? ReadState::kFailed : ReadState::kDown);
    }
  }
  asked_.clear();
  store_.progress.Call();
}

// Takes the next value, which may be missing, or not a value at all.
void RemoteReader::ReadNext() {
  const auto reply = client_->Next(waits_);
  if (!reply) return FailAsked(reply.error());
  const auto buffer = static_cast<uint32_t>(reply->id);
  if (reply->is_refused()) store_.CountFault({Code::kUnavailable, reply->words});
  std::erase(asked_, buffer);
  const uint64_t now = MonotonicNs();
  usual_.Observe(now - began_ns_);
  {
    MutexLock lock(store_.mutex);
    const bool is_gone = reply->outcome == StoreReply::Outcome::kNot;
    const bool is_value = reply->is_done() && IsValueLength(store_.options.shape, reply->bytes);
    RemoteBuffer& in = store_.buffers[buffer];
    if (is_value) {
      in.bytes = reply->bytes;
      store_.figures.stats.read_bytes += reply->bytes;
      store_.ObserveValue(now - began_ns_, reply->bytes);
    } else if (is_gone) {
      ++store_.figures.stats.fault_missing;
      if (RemoteNames::Entry* const entry = store_.names.Find(in.name);
          entry != nullptr && !entry->is_writing) {
        RemoteNames::Remove(entry);
      }
    } else if (!reply->is_refused()) {
      ++store_.figures.stats.fault_damaged;
      store_.names.DoubtOwner(in.owner);
    }
    store_.EndRead(buffer, is_value  ? ReadState::kArrived
                           : is_gone ? ReadState::kGone
                                     : ReadState::kFailed);
  }
  began_ns_ = now;
  store_.progress.Call();
}

// Fails all reads that wait: the tier is off.
void RemoteReader::FailAll() {
  {
    MutexLock lock(store_.mutex);
    while (!store_.queues.reads.empty()) {
      store_.EndRead(store_.queues.reads.PopFront(), ReadState::kDown);
    }
  }
  store_.progress.Call();
}

}  // namespace kvasir
