#include "remote/remote_reader.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/clock.h"

namespace kvasir {

std::optional<ReadId> RemoteReader::Begin(const RecordName& name) {
  using Use = RemoteBuffer::Use;
  std::optional<uint32_t> index;
  {
    MutexLock lock(store_.mutex);
    const RemoteNames::Entry* const entry = store_.names.Find(name);
    if (store_.state != RemoteStore::State::kOn || entry == nullptr ||
        !entry->IsFresh(store_.NowS()) || !store_.at(entry->owner).is_usable()) {
      return std::nullopt;
    }
    for (uint32_t i = 0; store_.num_reads > 0 && i < store_.num_buffers; ++i) {
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
    ++store_.num_reads;
    store_.next_buffer = *index + 1;
    store_.reads.PushBack(*index);
  }
  store_.reader_wake.notify_one();
  return ReadId{*index};
}

bool RemoteReader::HasRoom() const {
  MutexLock lock(store_.mutex);
  return store_.num_reads + store_.num_writes < store_.num_buffers;
}

ReadState RemoteReader::StateOf(ReadId read) const {
  MutexLock lock(store_.mutex);
  const RemoteBuffer& in = store_.buffers[static_cast<size_t>(read)];
  if (in.is_erased) return ReadState::kErased;
  if (in.use == RemoteBuffer::Use::kArrived) return ReadState::kArrived;
  if (in.use != RemoteBuffer::Use::kFailed) return ReadState::kReading;
  return in.ended;
}

bool RemoteReader::Open(ReadId read, const RecordFacts& facts, std::span<std::byte> payload) const {
  const auto index = static_cast<uint32_t>(read);
  WipedKey random;
  std::string owner_name;
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
  }
  const std::string name = RemoteName(owner_name, random, facts.name);
  const bool is_right = OpenValue({.shape = store_.options.shape,
                                   .identity = store_.options.identity,
                                   .random = random,
                                   .name = name},
                                  facts, store_.ValueOf(index), payload);
  MutexLock lock(store_.mutex);
  return is_right && !store_.buffers[index].is_erased;
}

void RemoteReader::End(ReadId read, ReadEnd end) {
  const auto index = static_cast<uint32_t>(read);
  MutexLock lock(store_.mutex);
  RemoteBuffer& in = store_.buffers[index];
  KV_CHECK(in.refs > 0);
  --in.refs;
  if (end == ReadEnd::kOpened) ++store_.stats.read_blocks;
  if (end == ReadEnd::kDamaged && !in.is_erased && in.use == RemoteBuffer::Use::kArrived) {
    ++store_.stats.fault_damaged;
    store_.names.DoubtOwner(in.owner);
    in.use = RemoteBuffer::Use::kFailed;
    in.ended = ReadState::kFailed;
  }
  if (in.refs > 0 || in.use == RemoteBuffer::Use::kReading) return;  // Loop frees it
  store_.FreeBufferOf(index);
}

bool RemoteReader::WaitForWork() {
  MutexLock lock(store_.mutex);
  while (store_.reads.empty()) {
    if (store_.is_stopping.load(std::memory_order_relaxed)) return false;
    lock.Wait(store_.reader_wake);
  }
  return !store_.is_stopping.load(std::memory_order_relaxed);
}

void RemoteReader::Loop() {
  while (WaitForWork()) {
    connection_.CloseStale();
    if (store_.is_on() && !connection_.is_open()) {
      began_ns_ = MonotonicNs();
      const auto waits = [this, most_ns = began_ns_ + 500'000'000] {
        return !store_.is_stopping.load(std::memory_order_relaxed) && MonotonicNs() < most_ns;
      };
      const Status opened = store_.Connect(connection_, waits);
      if (!opened) store_.TurnOff(opened.error().message);
    }
    if (!store_.is_on() || !connection_.is_open()) {
      FailAll();
      continue;
    }
    began_ns_ = MonotonicNs();
    do {
      const std::string text = TakeNext();
      const Status sent = text.empty() ? Status() : connection_.Send(text, waits_);
      if (!sent) {
        FailAsked(sent.error());
      } else if (!asked_.empty()) {
        ReadNext();
      }
    } while (!asked_.empty());
  }
  FailAll();
}

std::string RemoteReader::TakeNext() {
  std::string text;
  if (!connection_.is_open()) return text;
  const std::string ttl = std::to_string(store_.options.ttl_hours * 3600);
  const uint64_t most =
      std::max<uint64_t>(kUnreadBytes / store_.options.value_bytes(), 1);  // values at once
  MutexLock lock(store_.mutex);
  while (asked_.size() < most && !store_.reads.empty()) {
    const uint32_t index = store_.reads.PopFront();
    RemoteBuffer& in = store_.buffers[index];
    if (in.refs == 0 || in.is_erased) {
      store_.EndRead(index, ReadState::kFailed);
      continue;
    }
    const std::string name =
        RemoteName(store_.at(in.owner).name, store_.owner_keys.key_of(in.owner), in.name);
    AppendCommand(text, {"GET", name});
    RemoteNames::Entry* const entry = store_.names.Find(in.name);
    const uint32_t now_s = store_.NowS();
    const bool refreshes =
        store_.options.mode == RemoteMode::kReadWrite && entry != nullptr && entry->IsDue(now_s);
    if (refreshes) {
      AppendCommand(text, {"EXPIRE", name, ttl});
      entry->refreshed_s = now_s;
    }
    asked_.push_back({index, refreshes});
  }
  return text;
}

void RemoteReader::FailAsked(const Error& error) {
  store_.CountFault(error);
  connection_.Close();
  {
    MutexLock lock(store_.mutex);
    const bool is_damage = error.code == Code::kCorruption;  // it announces more than a record
    if (is_damage) {
      ++store_.stats.fault_damaged;
      store_.names.DoubtOwner(store_.buffers[asked_.front().buffer].owner);
    }
    for (const Asked& one : asked_) {
      store_.EndRead(one.buffer, is_damage ? ReadState::kFailed : ReadState::kDown);
    }
  }
  asked_.clear();
  store_.progress.Call();
}

// Takes the next value, which may be missing, or not a value at all.
void RemoteReader::ReadNext() {
  const Asked asked = asked_.front();
  const auto reply = connection_.Read(store_.ValueOf(asked.buffer), waits_);
  if (!reply) return FailAsked(reply.error());
  const bool is_error = reply->kind == RedisReply::Kind::kError;
  const std::string refused(is_error ? reply->text : "");  // which the next read ends
  if (asked.refreshes) {
    const auto refreshed = connection_.Read({}, waits_);
    if (!refreshed) return FailAsked(refreshed.error());
  }
  if (is_error) store_.CountFault({Code::kUnavailable, refused});
  asked_.pop_front();
  const uint64_t now = MonotonicNs();
  usual_.Observe(now - began_ns_);
  {
    MutexLock lock(store_.mutex);
    const bool is_gone = reply->kind == RedisReply::Kind::kNil;
    const bool is_value = reply->kind == RedisReply::Kind::kBulk &&
                          static_cast<uint64_t>(reply->number) == store_.options.value_bytes();
    RemoteBuffer& in = store_.buffers[asked.buffer];
    if (is_value) {
      store_.stats.read_bytes += store_.options.value_bytes();
      // The mean of times, not of speeds: what had come already takes no time.
      const double ns_per_byte =
          static_cast<double>(now - began_ns_) / static_cast<double>(store_.options.value_bytes());
      const double before =
          store_.load_bytes_per_s > 0 ? 1e9 / store_.load_bytes_per_s : ns_per_byte;
      store_.load_bytes_per_s = 1e9 / std::max(before * 0.95 + ns_per_byte * 0.05, 1e-3);
    } else if (is_gone) {
      ++store_.stats.fault_missing;
      if (RemoteNames::Entry* const entry = store_.names.Find(in.name);
          entry != nullptr && !entry->is_writing) {
        RemoteNames::Remove(entry);
      }
    } else if (!is_error) {
      ++store_.stats.fault_damaged;
      store_.names.DoubtOwner(in.owner);
    }
    store_.EndRead(asked.buffer, is_value  ? ReadState::kArrived
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
    while (!store_.reads.empty()) {
      store_.EndRead(store_.reads.PopFront(), ReadState::kDown);
    }
  }
  store_.progress.Call();
}

}  // namespace kvasir
