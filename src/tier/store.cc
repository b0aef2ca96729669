#include "tier/store.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/no_dump.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr uint64_t kBufferBytes = uint64_t{32} << 20;
constexpr uint64_t kGroupNs = 100'000'000;
constexpr uint64_t kGroupBytes = uint64_t{4} << 20;

// Takes what the constructor of a store takes of its arenas.
void Plan(const DiskTierOptions& options, Arena& index, Arena& out) {
  const uint32_t num_buffers = Store::NumBuffers(options);
  RecordIndex(index, Store::MaxRecords(options));
  SegmentTable(index, Store::MaxRecords(options));
  BufferQueues(index, num_buffers);
  RecordBuffers(index, out, options.shape, num_buffers);
}

}  // namespace

double StoreFigures::load_bytes_per_s() const {
  if (read_bytes_per_s <= 0 || open_bytes_per_s <= 0) return kept_bytes_per_s;
  return 1 / (1 / read_bytes_per_s + 1 / open_bytes_per_s);
}

uint32_t UseClock::NowHour() {
  const int64_t hour = std::max<int64_t>(storage_.UnixS(), 0) / 3600;
  NotBefore(static_cast<uint32_t>(std::min<int64_t>(hour, INT32_MAX)));
  return latest_hour_;
}
uint64_t UseClock::NewOrder() {
  last_order_ = std::max(uint64_t{NowHour()} << 32, last_order_ + 1);
  return last_order_;
}
void UseClock::NotBefore(uint32_t hour) { latest_hour_ = std::max(latest_hour_, hour); }

bool LeavingOwners::IsErasing(const Digest& owner) const {
  return std::ranges::find(erasing, owner) != erasing.end();
}
bool LeavingOwners::IsForgetting(const Digest& owner) const {
  return std::ranges::find(forgetting, owner) != forgetting.end();
}

uint32_t Store::MaxRecords(const DiskTierOptions& options) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(
      options.planned_cap_bytes() / options.shape.slot_bytes(), 16, kMaxDiskBlocks));
}
uint32_t Store::NumBuffers(const DiskTierOptions& options) {
  if (options.num_buffers) return *options.num_buffers;
  return static_cast<uint32_t>(
      std::max<uint64_t>(kMinBuffers, kBufferBytes / options.shape.slot_bytes()));
}
uint64_t Store::IndexBytes(const DiskTierOptions& options) {
  Arena index, out;
  Plan(options, index, out);
  return index.used() + OwnerKeys::BytesFor(OwnerKeys::kMaxOwners);
}
uint64_t Store::BufferBytes(const DiskTierOptions& options) {
  Arena index, out;
  Plan(options, index, out);
  return out.used();
}

Result<std::unique_ptr<Store>> Store::Create(const DiskTierOptions& options, Storage& storage) {
  Arena index_count, buffer_count;
  Plan(options, index_count, buffer_count);
  KV_ASSIGN(Arena index, Arena::Create(index_count.used()));
  KV_ASSIGN(Arena buffers, Arena::Create(buffer_count.used()));
  KV_ASSIGN(OwnerKeys keys, OwnerKeys::Create(OwnerKeys::kMaxOwners));
  return std::unique_ptr<Store>(
      new Store(options, storage, std::move(index), std::move(buffers), std::move(keys)));
}

Store::Store(const DiskTierOptions& tier_options, Storage& tier_storage, Arena index, Arena out,
             OwnerKeys owner_keys)
    : options(tier_options),
      storage(tier_storage),
      id(StoreIdOf(options.secret, options.identity)),
      index_arena(std::move(index)),
      buffer_arena(std::move(out)),
      records(index_arena, MaxRecords(options)),
      segments(index_arena, MaxRecords(options)),
      queues(index_arena, NumBuffers(options)),
      buffers(index_arena, buffer_arena, options.shape, NumBuffers(options)),
      keys(std::move(owner_keys)),
      clock(storage) {
  KV_CHECK(index_arena.used() == index_arena.size());
  KV_CHECK(buffer_arena.used() == buffer_arena.size());
  KeepOutOfDumps(index_arena.bytes());
  KeepOutOfDumps(buffer_arena.bytes());
}

std::optional<uint32_t> Store::FreeBuffer() const {
  for (uint32_t i = 0; i < buffers.size(); ++i) {
    const uint32_t index = (queues.next + i) % buffers.size();
    if (buffers.at(index).use == RecordBuffer::Use::kFree) return index;
  }
  return std::nullopt;
}

void Store::FreeBufferOf(uint32_t index) {
  using Use = RecordBuffer::Use;
  RecordBuffer& freed = buffers.at(index);
  const bool was_read =
      freed.use == Use::kReading || freed.use == Use::kArrived || freed.use == Use::kFailed;
  --(was_read ? queues.num_reads : queues.num_writes);
  freed = {};
  const std::span<std::byte> header = buffers.HeaderOf(index);  // of a write, with its tokens
  OPENSSL_cleanse(header.data(), header.size());
}

std::optional<OwnerId> Store::OwnerOf(const Digest& owner) {
  if (const auto known = keys.Find(owner)) return known;
  OwnerKey key{.owner = owner};
  if (!storage.FillRandom(key.key) || !storage.FillRandom(key.namespace_id)) return std::nullopt;
  std::optional<OwnerId> added = keys.Add(key);
  if (!added) {
    if (const auto unused = keys.Unused()) {
      keys.Release(*unused);
      added = keys.Add(key);
    }
  }
  OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
  return added;
}

void Store::DropRecord(EntryId entry) {
  const RecordIndex::Record record = records.at(entry);
  if (record.state == RecordIndex::State::kStored) segments.FreeSlot(record.slot);
  keys.EndUse(record.owner);
  records.Remove(entry);
}

bool Store::Evict(EvictCause cause) {
  const std::optional<EntryId> coldest = records.Coldest();
  if (!coldest) return false;
  TierStats& stats = figures.stats;
  ++(cause == EvictCause::kTtl
         ? stats.evicted_ttl
         : (cause == EvictCause::kSpace ? stats.evicted_space : stats.evicted_cap));
  const SlotRef slot = records.at(*coldest).slot;
  DropRecord(*coldest);
  if (cause == EvictCause::kTtl) segments.Condemn(slot);
  return true;
}

void Store::EndReader(RecordBuffer& read) {
  records.EndReader(*read.entry);
  segments.EndReader(read.slot);
}

void Store::ForgetReadsOf(EntryId entry) {
  for (uint32_t i = 0; i < buffers.size(); ++i) {
    RecordBuffer& one = buffers.at(i);
    if (!one.is_read() || one.entry != entry) continue;
    EndReader(one);
    one.entry.reset();
  }
}

void Store::CancelReadsOf(OwnerId owner) {
  for (uint32_t i = 0; i < buffers.size(); ++i) {
    RecordBuffer& one = buffers.at(i);
    if (!one.is_read() || one.owner != owner) continue;
    EndReader(one);
    one.Cancel();
  }
}

void Store::CancelWritesOf(OwnerId owner) {
  for (uint32_t i = 0; i < buffers.size(); ++i) {
    RecordBuffer& one = buffers.at(i);
    if (one.is_write() && one.owner == owner) one.Cancel();
  }
}

void Store::CancelWrite(EntryId entry) {
  for (uint32_t i = 0; i < buffers.size(); ++i) {
    RecordBuffer& one = buffers.at(i);
    if (!one.is_write() || one.entry != entry) continue;
    one.Cancel();
    const std::span<std::byte> tokens = buffers.TokensOf(i);
    OPENSSL_cleanse(tokens.data(), tokens.size());
  }
  DropRecord(entry);
}

void Store::EndFailedWrite(uint32_t index) {
  RecordBuffer& out = buffers.at(index);
  if (!out.is_cancelled) ++figures.stats.dropped_failed;
  if (out.has_slot) {
    segments.Condemn(out.slot);  // its bytes, or others' from before, may be on the disk
  }
  if (out.entry) {
    records.Remove(*out.entry);
    keys.EndUse(out.owner);
  }
  if (out.has_owner) keys.EndUse(out.owner);
  FreeBufferOf(index);
}

void Store::Leave(std::string reason) {
  using Use = RecordBuffer::Use;
  state.now = TierStats::State::kBroken;
  state.reason = std::move(reason);
  queues.writes.Clear();
  queues.reads.Clear();
  queues.queued_bytes = 0;
  for (uint32_t i = 0; i < buffers.size(); ++i) {
    RecordBuffer& one = buffers.at(i);
    if (one.use == Use::kFree) continue;
    one.is_cancelled = true;
    one.entry.reset();
    one.has_owner = one.has_slot = false;
    if (one.use == Use::kQueued || one.use == Use::kWriting) {
      ++figures.stats.dropped_failed;
      FreeBufferOf(i);
    } else if (one.use == Use::kSealing) {
      ++figures.stats.dropped_failed;
    } else if (one.use == Use::kReading && one.run_ns == 0) {
      one.use = Use::kFailed;
      if (one.refs == 0) FreeBufferOf(i);
    }
  }
  records.Clear();
  segments.Clear();
  keys.Clear();
  state.files.reset();
}

bool Store::IsGroupDue() const {
  if (state.now != TierStats::State::kOn || queues.writes.empty()) return false;
  if (options.threads == 0 || is_stopping || queues.num_flushes > 0) return true;
  const RecordBuffer& oldest = buffers.at(queues.writes.at(0));
  return queues.queued_bytes >= kGroupBytes || storage.MonotonicNs() >= oldest.since_ns + kGroupNs;
}

uint32_t Store::max_group() const {
  return static_cast<uint32_t>(std::max<uint64_t>(1, kGroupBytes / options.shape.slot_bytes()));
}

void Store::CountError(uint64_t TierStats::*counter, int error) {
  const uint64_t now_ns = storage.MonotonicNs();
  const auto kind =
      counter == &TierStats::fault_stalled ? ErrorWindow::Kind::kStall : ErrorWindow::Kind::kError;
  MutexLock lock(mutex);
  ++(figures.stats.*counter);
  figures.last_error = error;
  if (figures.errors.Count(kind, now_ns)) state.must_leave = true;
}

std::string Store::LastErrorText() const {
  if (figures.last_error == 0) return "";
  return fmt::format(", last error: {}", std::strerror(figures.last_error));
}

bool Store::CheckInvariants() const {
  if (!records.CheckInvariants()) return false;
  uint32_t stored = 0, taken = 0;
  for (uint32_t i = 0; i < records.num_entries(); ++i) {
    const RecordIndex::Record& record = records.entry(i);
    if (record.state != RecordIndex::State::kStored) continue;
    ++stored;
    if (segments.state(record.slot) != SegmentTable::SlotState::kTaken) return false;
  }
  for (uint32_t i = 0; i < segments.max_segments(); ++i) taken += segments.at(i).num_taken;
  return taken >= stored;
}

}  // namespace kvasir
