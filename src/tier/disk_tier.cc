#include "tier/disk_tier.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/fault.h"
#include "base/no_dump.h"
#include "base/result.h"
#include "base/sizes.h"

namespace kvasir {
uint64_t DiskTier::UsableBytes(const DiskTierOptions& options) {
  return std::min(options.planned_cap_bytes(), kMaxDiskBlocks * options.shape.slot_bytes());
}

uint64_t DiskTier::MinCapBytes(const RecordShape& shape) {
  return 2 * SegmentBytesFor(shape, 0) + Store::kBesideBytes;
}

Result<std::unique_ptr<DiskTier>> DiskTier::Open(const DiskTierOptions& options, Storage& storage) {
  if (options.cap_bytes && !options.segment_bytes &&
      *options.cap_bytes < MinCapBytes(options.shape)) {
    return FailField(Code::kInvalidArgument, "disk_cap",
                     "{} bytes hold less than two segments; give at least {}, or 0 for no disk",
                     *options.cap_bytes, RoundedUpMib(MinCapBytes(options.shape)));
  }
  if (options.ttl_hours == 0) {
    return FailField(Code::kInvalidArgument, "disk_ttl", "0 hours keep nothing; give at least 1");
  }
  KV_ASSIGN(std::unique_ptr<Store> store, Store::Create(options, storage));
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(store)));
  const bool has_threads = options.threads > 0;
  if (has_threads) {
    KV_ASSIGN(tier->reader_thread_, tier->StartThreadOf(&DiskTier::ReaderLoop));
  }
  if (const Status opened = tier->OpenStore(); !opened) {
    if (!tier->has_folder_) return tl::unexpected(opened.error());
    tier->StayOff(opened.error());  // a fault of what lies in it costs time, not the start
  }
  if (has_threads) {
    KV_ASSIGN(tier->writer_thread_, tier->StartThreadOf(&DiskTier::WriterLoop));
  }
  return tier;
}

DiskTier::DiskTier(std::unique_ptr<Store> store)
    : owned_store_(std::move(store)), store_(*owned_store_), reader_(store_) {
  group_.reserve(store_.buffers.size());
  dropped_group_.reserve(store_.buffers.size());
}

void DiskTier::Wake() {
  store_.writer_wake.notify_all();
  store_.reader_wake.notify_all();
}

bool DiskTier::Has(const RecordName& name) const {
  MutexLock lock(store_.mutex);
  const auto entry = store_.records.Find(name);
  if (!entry) return false;
  const RecordIndex::Record& record = store_.records.at(*entry);
  return record.state == RecordIndex::State::kStored &&
         !store_.leaving.IsForgetting(store_.keys.owner_of(record.owner));
}

void DiskTier::Touch(const RecordName& name) {
  MutexLock lock(store_.mutex);
  const auto entry = store_.records.Find(name);
  if (!entry) return;
  store_.records.Touch(*entry, store_.clock.NewOrder());
  const RecordIndex::Record& record = store_.records.at(*entry);
  if (record.state == RecordIndex::State::kStored) {
    store_.segments.at(record.slot.segment).has_new_hours = true;
  }
}

bool DiskTier::OpenOwner(const Digest& owner) {
  MutexLock lock(store_.mutex);
  // Where the store is not open, BeginWrite makes the key when it is.
  return store_.state.now != State::kOn || store_.leaving.IsErasing(owner) ||
         store_.OwnerOf(owner).has_value();
}

tl::expected<WriteId, WriteRefusal> DiskTier::BeginWrite(const RecordFacts& facts) {
  const auto refused = [](WriteRefusal why) { return tl::unexpected(why); };
  KV_CHECK(facts.tokens.size() == store_.options.shape.block_tokens);
  MutexLock lock(store_.mutex);
  if (store_.state.now != State::kOn || store_.is_stopping ||
      store_.leaving.IsErasing(facts.owner) || store_.leaving.IsForgetting(facts.owner)) {
    return refused(WriteRefusal::kOff);
  }
  if (store_.records.Find(facts.name)) return refused(WriteRefusal::kKnown);
  if (facts.after && !store_.records.Find(*facts.after) &&
      !FaultActive(Fault::kChildWithoutParent)) {
    return refused(WriteRefusal::kOff);
  }
  const uint64_t record_bytes = store_.options.shape.slot_bytes();
  const uint64_t budget = 2 * store_.state.cap_bytes;
  const uint64_t written = store_.figures.stats.written_today_bytes +
                           store_.records.num_writing() * record_bytes + record_bytes;
  if (written > budget || (written > budget / 2 && !facts.used_again)) {
    return refused(WriteRefusal::kBudget);
  }
  if (store_.queues.num_writes >= store_.buffers.size() / 2)
    return refused(WriteRefusal::kNoBuffer);
  const std::optional<uint32_t> index = store_.FreeBuffer();
  if (!index) return refused(WriteRefusal::kNoBuffer);
  const std::optional<OwnerId> owner = store_.OwnerOf(facts.owner);
  RecordBuffer out;
  if (!owner || !store_.storage.FillRandom(out.salt)) return refused(WriteRefusal::kOff);
  std::optional<EntryId> entry =
      store_.records.Add(facts.name, *owner, facts.after, store_.clock.NewOrder());
  // Of a chain that is being written, the one before is not evictable any more when it is needed.
  if (!entry && !(store_.records.is_full() && store_.Evict(EvictCause::kCap))) {
    return refused(WriteRefusal::kNoBuffer);
  }
  if (!entry) {
    if (facts.after && !store_.records.Find(*facts.after)) return refused(WriteRefusal::kOff);
    entry = store_.records.Add(facts.name, *owner, facts.after, store_.clock.NewOrder());
  }
  if (!entry) return refused(WriteRefusal::kNoBuffer);
  store_.keys.AddUse(*owner);
  store_.keys.AddUse(*owner);  // the record's, and the buffer's
  out.use = RecordBuffer::Use::kSealing;
  out.has_entry = out.has_owner = true;
  out.entry = *entry;
  out.name = facts.name;
  out.parent = facts.parent;
  out.has_after = facts.after.has_value();
  if (facts.after) out.after = *facts.after;
  out.owner = *owner;
  store_.buffers.at(*index) = out;
  ++store_.queues.num_writes;
  store_.queues.next = *index + 1;
  std::memcpy(store_.buffers.HeaderOf(*index).data() + kPublicBytes, facts.tokens.data(),
              facts.tokens.size_bytes());
  return WriteId{*index};
}

void DiskTier::Seal(WriteId write, std::span<const std::byte> payload) {
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

void DiskTier::EndWrite(WriteId write) {
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
    wakes = store_.queues.writes.size() == 1 || IsGroupDue();
    store_.writer_has_news |= wakes;
  }
  if (wakes) store_.writer_wake.notify_one();
}

void DiskTier::CountDropped(WriteRefusal why) {
  MutexLock lock(store_.mutex);
  if (why == WriteRefusal::kNoBuffer) ++store_.figures.stats.dropped_buffer;
  if (why == WriteRefusal::kBudget) ++store_.figures.stats.dropped_budget;
  if (why == WriteRefusal::kOff) ++store_.figures.stats.dropped_failed;
}

void DiskTier::set_on_progress(std::function<void()> on_progress) {
  progress_.Set(std::move(on_progress));
}

std::optional<ReadId> DiskTier::BeginRead(const RecordName& name) { return reader_.Begin(name); }
bool DiskTier::HasReadRoom() const { return reader_.HasRoom(); }
ReadState DiskTier::StateOf(ReadId read) const { return reader_.StateOf(read); }
bool DiskTier::Open(ReadId read, const RecordFacts& facts, std::span<std::byte> payload) const {
  return reader_.Open(read, facts, payload);
}
void DiskTier::EndRead(ReadId read, ReadEnd end) { reader_.End(read, end); }

void DiskTier::Flush(std::function<void(Result<TierFlushed>)> done) {
  std::list<FlushJob> job(1);
  job.front().done = std::move(done);
  {
    MutexLock lock(store_.mutex);
    if (!store_.is_stopping) {
      job.front().number = store_.queues.last_write;
      job.front().blocks = store_.figures.stats.blocks;
      job.front().bytes = store_.figures.stats.written_bytes;
      job.front().dropped = store_.figures.stats.dropped_failed;
      flushes_.splice(flushes_.end(), job);
      store_.writer_has_news = true;
    }
  }
  for (const FlushJob& refused : job) {
    refused.done(Fail(Code::kUnavailable, "disk tier: it is being closed"));
  }
  store_.writer_wake.notify_one();
}

TierStats DiskTier::Stats() const {
  MutexLock lock(store_.mutex);
  TierStats stats = store_.figures.stats;
  stats.state = store_.state.now;
  stats.reason = store_.state.reason;
  if (store_.state.now == State::kOn && !store_.state.full_reason.empty()) {
    stats.state = State::kFull;
    stats.reason = store_.state.full_reason;
    stats.missing_bytes = store_.state.missing_bytes;
  }
  stats.folder = store_.options.folder;
  stats.durable = store_.state.is_durable;
  stats.cap_bytes = store_.state.cap_bytes;
  stats.budget_bytes = 2 * store_.state.cap_bytes;
  stats.blocks = store_.records.num_stored();
  stats.pending_blocks = store_.records.num_writing();
  stats.used_bytes = stats.blocks * store_.options.shape.slot_bytes();
  stats.load_bytes_per_s = store_.figures.load_bytes_per_s();
  return stats;
}

void DiskTier::RunPending() {
  KV_CHECK(store_.options.threads == 0);
  for (bool has_worked = true; has_worked;) {
    has_worked = WriterStep();
    has_worked |= ReaderStep();
  }
}

bool DiskTier::CheckInvariants() const {
  MutexLock lock(store_.mutex);
  return store_.CheckInvariants();
}

}  // namespace kvasir
