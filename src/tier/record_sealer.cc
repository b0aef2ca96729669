#include "tier/record_sealer.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/fault.h"

namespace kvasir {

// Returns why the record may not be written now; absent: it may, if there is a buffer.
std::optional<WriteRefusal> RecordSealer::Refusal(const RecordFacts& facts) const {
  const bool is_leaving =
      store_.leaving.IsErasing(facts.owner) || store_.leaving.IsForgetting(facts.owner);
  if (store_.state.now != TierStats::State::kOn || store_.is_stopping || is_leaving) {
    return WriteRefusal::kOff;
  }
  if (store_.records.Find(facts.name)) return WriteRefusal::kKnown;
  if (facts.after && !store_.records.Find(*facts.after) &&
      !FaultActive(Fault::kChildWithoutParent)) {
    return WriteRefusal::kOff;
  }
  const uint64_t record_bytes = store_.options.shape.slot_bytes();
  const uint64_t budget = 2 * store_.state.cap_bytes;
  const uint64_t written = store_.figures.stats.written_today_bytes +
                           store_.records.num_writing() * record_bytes + record_bytes;
  if (written > budget || (written > budget / 2 && !facts.used_again)) {
    return WriteRefusal::kBudget;
  }
  if (store_.queues.num_writes >= store_.buffers.size() / 2) return WriteRefusal::kNoBuffer;
  return std::nullopt;
}

// Adds the record to the index, which evicts another one where it is full.
tl::expected<EntryId, WriteRefusal> RecordSealer::AddEntry(const RecordFacts& facts,
                                                           OwnerId owner) {
  std::optional<EntryId> entry =
      store_.records.Add(facts.name, owner, facts.after, store_.clock.NewOrder());
  if (entry) return *entry;
  // In a chain that is being written, the record before is needed and may no longer be evicted.
  if (!store_.records.is_full() || !store_.Evict(EvictCause::kCap)) {
    return tl::unexpected(WriteRefusal::kNoBuffer);
  }
  if (facts.after && !store_.records.Find(*facts.after)) return tl::unexpected(WriteRefusal::kOff);
  entry = store_.records.Add(facts.name, owner, facts.after, store_.clock.NewOrder());
  if (!entry) return tl::unexpected(WriteRefusal::kNoBuffer);
  return *entry;
}

tl::expected<WriteId, WriteRefusal> RecordSealer::Begin(const RecordFacts& facts) {
  KV_CHECK(facts.tokens.size() == store_.options.shape.block_tokens);
  MutexLock lock(store_.mutex);
  if (const auto refusal = Refusal(facts)) return tl::unexpected(*refusal);
  const std::optional<uint32_t> index = store_.FreeBuffer();
  if (!index) return tl::unexpected(WriteRefusal::kNoBuffer);
  const std::optional<OwnerId> owner = store_.OwnerOf(facts.owner);
  RecordBuffer out;
  if (!owner || !store_.storage.FillRandom(out.salt)) return tl::unexpected(WriteRefusal::kOff);
  const auto entry = AddEntry(facts, *owner);
  if (!entry) return tl::unexpected(entry.error());
  store_.keys.AddUse(*owner);
  store_.keys.AddUse(*owner);  // the record's, and the buffer's
  out.use = RecordBuffer::Use::kSealing;
  out.has_owner = true;
  out.entry = *entry;
  out.name = facts.name;
  out.parent = facts.parent;
  out.after = facts.after;
  out.owner = *owner;
  store_.buffers.at(*index) = out;
  ++store_.queues.num_writes;
  store_.queues.next = *index + 1;
  std::memcpy(store_.buffers.HeaderOf(*index).data() + kPublicBytes, facts.tokens.data(),
              facts.tokens.size_bytes());
  return WriteId{*index};
}

void RecordSealer::Seal(WriteId write, std::span<const std::byte> payload) {
  const auto index = static_cast<uint32_t>(write);
  KV_CHECK(payload.size() == store_.options.shape.payload_bytes);
  OwnerKey key;
  {
    MutexLock lock(store_.mutex);
    KV_CHECK(store_.buffers.at(index).use == RecordBuffer::Use::kSealing);
    if (store_.buffers.at(index).is_cancelled) return;
    key = store_.keys.KeyOf(store_.buffers.at(index).owner);
  }
  AesKey record_key = RecordKeyOf(key.key, store_.buffers.at(index).salt);
  const std::span<std::byte> out = store_.buffers.PayloadOf(index);
  AesTag tag{};
  const bool sealed = SealPayload(record_key, payload, out.first(payload.size()), &tag);
  std::ranges::fill(out.subspan(payload.size()), std::byte{0});
  OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
  OPENSSL_cleanse(record_key.data(), record_key.size());
  MutexLock lock(store_.mutex);
  store_.buffers.at(index).payload_tag = tag;
  store_.buffers.at(index).is_bad = !sealed;
}

void RecordSealer::End(WriteId write) {
  const auto index = static_cast<uint32_t>(write);
  bool wakes;
  {
    MutexLock lock(store_.mutex);
    RecordBuffer& out = store_.buffers.at(index);
    KV_CHECK(out.use == RecordBuffer::Use::kSealing);
    if (out.is_cancelled || out.is_bad) {
      store_.EndFailedWrite(index);
      return;
    }
    out.use = RecordBuffer::Use::kQueued;
    out.number = ++store_.queues.last_write;
    out.since_ns = store_.storage.MonotonicNs();
    store_.queues.queued_bytes += store_.options.shape.slot_bytes();
    store_.queues.writes.PushBack(index);
    // The writer looks every 20 ms while something waits.
    wakes = store_.queues.writes.size() == 1 || store_.IsGroupDue();
    store_.writer_has_news |= wakes;
  }
  if (wakes) store_.writer_wake.notify_one();
}

}  // namespace kvasir
