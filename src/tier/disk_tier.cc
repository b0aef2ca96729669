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
namespace {

constexpr uint64_t kBufferBytes = uint64_t{32} << 20;
constexpr uint64_t kScratchBytes = 256 * 1024;  // of each of the two threads
constexpr uint32_t kMinBuffers = 8;

uint64_t ScratchBytes(const RecordShape& shape) {
  return std::max(kScratchBytes, RoundUp(shape.slot_bytes(), kTierPageBytes));
}

}  // namespace

uint32_t DiskTier::MaxRecords(const DiskTierOptions& options) {
  const uint64_t cap = options.cap_bytes.value_or(kDefaultDiskCapBytes);
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(cap / options.shape.slot_bytes(), 16, kMaxDiskBlocks));
}

uint64_t DiskTier::UsableBytes(const DiskTierOptions& options) {
  const uint64_t cap = options.cap_bytes.value_or(kDefaultDiskCapBytes);
  return std::min(cap, kMaxDiskBlocks * options.shape.slot_bytes());
}

uint32_t DiskTier::NumBuffers(const DiskTierOptions& options) {
  if (options.num_buffers) return *options.num_buffers;
  return static_cast<uint32_t>(
      std::max<uint64_t>(kMinBuffers, kBufferBytes / options.shape.slot_bytes()));
}

uint64_t DiskTier::MinCapBytes(const RecordShape& shape) {
  return 2 * SegmentBytesFor(shape, 0) + kBesideBytes;
}

DiskTier::Memory::Memory(Arena& index, Arena& out, const DiskTierOptions& options)
    : records(index, MaxRecords(options)),
      segments(index, MaxRecords(options)),
      write_queue(index, NumBuffers(options)),
      read_queue(index, NumBuffers(options)),
      buffers(index.TakeArray<Buffer>(NumBuffers(options))),
      headers(nullptr),
      payloads(out.Take(NumBuffers(options) * options.shape.stride_bytes())),
      scratch(out.Take(2 * ScratchBytes(options.shape))) {
  headers = out.Take(NumBuffers(options) * options.shape.header_bytes());
}

uint64_t DiskTier::IndexBytes(const DiskTierOptions& options) {
  Arena index, buffers;
  Memory planned(index, buffers, options);
  return index.used() + OwnerKeys::BytesFor(OwnerKeys::kMaxOwners);
}
uint64_t DiskTier::BufferBytes(const DiskTierOptions& options) {
  Arena index, buffers;
  Memory planned(index, buffers, options);
  return buffers.used();
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
  Arena index_count, buffer_count;
  Memory planned(index_count, buffer_count, options);
  KV_ASSIGN(Arena index, Arena::Create(index_count.used()));
  KV_ASSIGN(Arena buffers, Arena::Create(buffer_count.used()));
  KV_ASSIGN(OwnerKeys keys, OwnerKeys::Create(OwnerKeys::kMaxOwners));
  std::unique_ptr<DiskTier> tier(
      new DiskTier(options, storage, std::move(index), std::move(buffers), std::move(keys)));
  const bool has_threads = options.threads > 0;
  if (has_threads) {
    KV_ASSIGN(tier->reader_, tier->StartThreadOf(&DiskTier::ReaderLoop));
  }
  if (const Status opened = tier->OpenStore(); !opened) {
    if (!tier->has_folder_) return tl::unexpected(opened.error());
    tier->StayOff(opened.error());  // a fault of what lies in it costs time, not the start
  }
  if (has_threads) {
    KV_ASSIGN(tier->writer_, tier->StartThreadOf(&DiskTier::WriterLoop));
  }
  return tier;
}

DiskTier::DiskTier(const DiskTierOptions& options, Storage& storage, Arena index, Arena buffers,
                   OwnerKeys keys)
    : options_(options),
      storage_(storage),
      index_cap_bytes_(options.cap_bytes.value_or(kDefaultDiskCapBytes)),
      store_(StoreIdOf(options.secret, options.identity)),
      head_key_(HeadKeyOf(options.secret)),
      num_buffers_(NumBuffers(options)),
      index_arena_(std::move(index)),
      buffer_arena_(std::move(buffers)),
      memory_(index_arena_, buffer_arena_, options),
      buffers_(memory_.buffers),
      headers_(memory_.headers),
      payloads_(memory_.payloads),
      scratch_(memory_.scratch),
      keys_(std::move(keys)) {
  KV_CHECK(index_arena_.used() == index_arena_.size());
  KV_CHECK(buffer_arena_.used() == buffer_arena_.size());
  KeepOutOfDumps(index_arena_.bytes());
  KeepOutOfDumps(buffer_arena_.bytes());
  std::fill_n(buffers_, num_buffers_, Buffer{});
  group_.reserve(num_buffers_);
  dropped_group_.reserve(num_buffers_);
  run_.reserve(num_buffers_);
}

std::span<std::byte> DiskTier::HeaderOf(uint32_t buffer) const {
  const uint64_t bytes = options_.shape.header_bytes();
  return {headers_ + buffer * bytes, bytes};
}
std::span<std::byte> DiskTier::PayloadOf(uint32_t buffer) const {
  const uint64_t bytes = options_.shape.stride_bytes();
  return {payloads_ + buffer * bytes, bytes};
}
std::span<std::byte> DiskTier::ScratchOf(uint32_t thread) const {
  const uint64_t bytes = ScratchBytes(options_.shape);
  return {scratch_ + thread * bytes, bytes};
}

std::optional<uint32_t> DiskTier::FreeBuffer() const {
  for (uint32_t i = 0; i < num_buffers_; ++i) {
    const uint32_t index = (next_buffer_ + i) % num_buffers_;
    if (buffer(index).use == Buffer::Use::kFree) return index;
  }
  return std::nullopt;
}

void DiskTier::FreeBufferOf(uint32_t index) {
  using Use = Buffer::Use;
  Buffer& freed = buffer(index);
  const bool was_read =
      freed.use == Use::kReading || freed.use == Use::kArrived || freed.use == Use::kFailed;
  --(was_read ? read_buffers_ : write_buffers_);
  freed = {};
  const std::span<std::byte> header = HeaderOf(index);  // of a write, with its tokens
  OPENSSL_cleanse(header.data(), header.size());
}

bool DiskTier::IsErasing(const Digest& owner) const {
  return std::ranges::find(erasing_, owner) != erasing_.end();
}
bool DiskTier::IsForgetting(const Digest& owner) const {
  return std::ranges::find(forgetting_, owner) != forgetting_.end();
}

std::optional<OwnerId> DiskTier::OwnerOf(const Digest& owner) {
  if (const auto known = keys_.Find(owner)) return known;
  OwnerKey key{.owner = owner};
  if (!storage_.FillRandom(key.key) || !storage_.FillRandom(key.namespace_id)) return std::nullopt;
  std::optional<OwnerId> added = keys_.Add(key);
  if (!added) {
    if (const auto unused = keys_.Unused()) {
      keys_.Release(*unused);
      added = keys_.Add(key);
    }
  }
  OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
  return added;
}

uint32_t DiskTier::NowHour() {
  const int64_t hour = std::max<int64_t>(storage_.UnixS(), 0) / 3600;
  latest_hour_ = std::max(latest_hour_, static_cast<uint32_t>(std::min<int64_t>(hour, INT32_MAX)));
  return latest_hour_;
}
uint64_t DiskTier::NewOrder() {
  last_order_ = std::max(uint64_t{NowHour()} << 32, last_order_ + 1);
  return last_order_;
}

void DiskTier::DropRecord(EntryId entry) {
  const RecordIndex::Record record = memory_.records.at(entry);
  if (record.state == RecordIndex::State::kStored) memory_.segments.FreeSlot(record.slot);
  keys_.EndUse(record.owner);
  memory_.records.Remove(entry);
}

void DiskTier::Wake() {
  writer_wake_.notify_all();
  reader_wake_.notify_all();
}

void DiskTier::CallProgress() {
  const std::function<void()>* call;
  {
    MutexLock lock(mutex_);
    if (is_left_ || !on_progress_) return;
    call = &on_progress_;  // set once, before anything else
    ++progress_calls_;
  }
  try {
    (*call)();
  } catch (...) {  // it had no memory; the next one tells as much
  }
  MutexLock lock(mutex_);
  --progress_calls_;
  thread_ended_.notify_all();
}

bool DiskTier::Has(const RecordName& name) const {
  MutexLock lock(mutex_);
  const auto entry = memory_.records.Find(name);
  if (!entry) return false;
  const RecordIndex::Record& record = memory_.records.at(*entry);
  return record.state == RecordIndex::State::kStored && !IsForgetting(keys_.owner_of(record.owner));
}

void DiskTier::Touch(const RecordName& name) {
  MutexLock lock(mutex_);
  const auto entry = memory_.records.Find(name);
  if (!entry) return;
  memory_.records.Touch(*entry, NewOrder());
  const RecordIndex::Record& record = memory_.records.at(*entry);
  if (record.state == RecordIndex::State::kStored) {
    memory_.segments.at(record.slot.segment).has_new_hours = true;
  }
}

bool DiskTier::OpenOwner(const Digest& owner) {
  MutexLock lock(mutex_);
  // Where the store is not open, BeginWrite makes the key when it is.
  return state_ != State::kOn || IsErasing(owner) || OwnerOf(owner).has_value();
}

tl::expected<WriteId, WriteRefusal> DiskTier::BeginWrite(const RecordFacts& facts) {
  const auto refused = [](WriteRefusal why) { return tl::unexpected(why); };
  KV_CHECK(facts.tokens.size() == options_.shape.block_tokens);
  MutexLock lock(mutex_);
  if (state_ != State::kOn || is_stopping_ || IsErasing(facts.owner) || IsForgetting(facts.owner)) {
    return refused(WriteRefusal::kOff);
  }
  if (memory_.records.Find(facts.name)) return refused(WriteRefusal::kKnown);
  if (facts.after && !memory_.records.Find(*facts.after) &&
      !FaultActive(Fault::kChildWithoutParent)) {
    return refused(WriteRefusal::kOff);
  }
  const uint64_t record_bytes = options_.shape.slot_bytes();
  const uint64_t budget = 2 * cap_bytes_;
  const uint64_t written =
      stats_.written_today_bytes + memory_.records.num_writing() * record_bytes + record_bytes;
  if (written > budget || (written > budget / 2 && !facts.used_again)) {
    return refused(WriteRefusal::kBudget);
  }
  if (write_buffers_ >= num_buffers_ / 2) return refused(WriteRefusal::kNoBuffer);
  const std::optional<uint32_t> index = FreeBuffer();
  if (!index) return refused(WriteRefusal::kNoBuffer);
  const std::optional<OwnerId> owner = OwnerOf(facts.owner);
  Buffer out;
  if (!owner || !storage_.FillRandom(out.salt)) return refused(WriteRefusal::kOff);
  std::optional<EntryId> entry = memory_.records.Add(facts.name, *owner, facts.after, NewOrder());
  // Of a chain that is being written, the one before is not evictable any more when it is needed.
  if (!entry && !(memory_.records.is_full() && Evict(EvictCause::kCap))) {
    return refused(WriteRefusal::kNoBuffer);
  }
  if (!entry) {
    if (facts.after && !memory_.records.Find(*facts.after)) return refused(WriteRefusal::kOff);
    entry = memory_.records.Add(facts.name, *owner, facts.after, NewOrder());
  }
  if (!entry) return refused(WriteRefusal::kNoBuffer);
  keys_.AddUse(*owner);
  keys_.AddUse(*owner);  // the record's, and the buffer's
  out.use = Buffer::Use::kSealing;
  out.has_entry = out.has_owner = true;
  out.entry = *entry;
  out.name = facts.name;
  out.parent = facts.parent;
  out.has_after = facts.after.has_value();
  if (facts.after) out.after = *facts.after;
  out.owner = *owner;
  buffer(*index) = out;
  ++write_buffers_;
  next_buffer_ = *index + 1;
  std::memcpy(HeaderOf(*index).data() + kPublicBytes, facts.tokens.data(),
              facts.tokens.size_bytes());
  return WriteId{*index};
}

void DiskTier::Seal(WriteId write, std::span<const std::byte> payload) {
  const auto index = static_cast<uint32_t>(write);
  KV_CHECK(payload.size() == options_.shape.payload_bytes);
  OwnerKey key;
  {
    MutexLock lock(mutex_);
    KV_CHECK(buffer(index).use == Buffer::Use::kSealing);
    if (buffer(index).is_cancelled) return;
    key = keys_.KeyOf(buffer(index).owner);
  }
  AesKey record_key = RecordKeyOf(key.key, buffer(index).salt);
  const std::span<std::byte> out = PayloadOf(index);
  AesTag tag{};
  const bool sealed = SealPayload(record_key, payload, out.first(payload.size()), &tag);
  std::ranges::fill(out.subspan(payload.size()), std::byte{0});
  OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
  OPENSSL_cleanse(record_key.data(), record_key.size());
  MutexLock lock(mutex_);
  buffer(index).payload_tag = tag;
  buffer(index).is_bad = !sealed;
}

void DiskTier::EndWrite(WriteId write) {
  const auto index = static_cast<uint32_t>(write);
  bool wakes;
  {
    MutexLock lock(mutex_);
    Buffer& out = buffer(index);
    KV_CHECK(out.use == Buffer::Use::kSealing);
    if (out.is_cancelled || out.is_bad) {
      EndFailedWrite(index);
      return;
    }
    out.use = Buffer::Use::kQueued;
    out.number = ++last_write_;
    out.since_ns = storage_.MonotonicNs();
    queued_bytes_ += options_.shape.slot_bytes();
    memory_.write_queue.PushBack(index);
    // The writer looks every 20 ms while something waits.
    wakes = memory_.write_queue.size() == 1 || IsGroupDue();
    writer_has_news_ |= wakes;
  }
  if (wakes) writer_wake_.notify_one();
}

void DiskTier::CountDropped(WriteRefusal why) {
  MutexLock lock(mutex_);
  if (why == WriteRefusal::kNoBuffer) ++stats_.dropped_buffer;
  if (why == WriteRefusal::kBudget) ++stats_.dropped_budget;
  if (why == WriteRefusal::kOff) ++stats_.dropped_failed;
}

void DiskTier::set_on_progress(std::function<void()> on_progress) {
  MutexLock lock(mutex_);
  while (progress_calls_ > 0) lock.Wait(thread_ended_);  // of the one before
  on_progress_ = std::move(on_progress);
}

void DiskTier::Flush(std::function<void(Result<TierFlushed>)> done) {
  std::list<FlushJob> job(1);
  job.front().done = std::move(done);
  {
    MutexLock lock(mutex_);
    if (!is_stopping_) {
      job.front().number = last_write_;
      job.front().blocks = stats_.blocks;
      job.front().bytes = stats_.written_bytes;
      job.front().dropped = stats_.dropped_failed;
      flushes_.splice(flushes_.end(), job);
      writer_has_news_ = true;
    }
  }
  for (const FlushJob& refused : job) {
    refused.done(Fail(Code::kUnavailable, "disk tier: it is being closed"));
  }
  writer_wake_.notify_one();
}

TierStats DiskTier::Stats() const {
  MutexLock lock(mutex_);
  TierStats stats = stats_;
  stats.state = state_;
  stats.reason = reason_;
  if (state_ == State::kOn && !full_reason_.empty()) {
    stats.state = State::kFull;
    stats.reason = full_reason_;
    stats.missing_bytes = missing_bytes_;
  }
  stats.folder = options_.folder;
  stats.durable = is_durable_;
  stats.cap_bytes = cap_bytes_;
  stats.budget_bytes = 2 * cap_bytes_;
  stats.blocks = memory_.records.num_stored();
  stats.pending_blocks = memory_.records.num_writing();
  stats.used_bytes = stats.blocks * options_.shape.slot_bytes();
  stats.load_bytes_per_s = kept_bytes_per_s_;
  if (read_bytes_per_s_ > 0 && open_bytes_per_s_ > 0) {
    stats.load_bytes_per_s = 1 / (1 / read_bytes_per_s_ + 1 / open_bytes_per_s_);
  }
  return stats;
}

void DiskTier::RunPending() {
  KV_CHECK(options_.threads == 0);
  for (bool has_worked = true; has_worked;) {
    has_worked = WriterStep();
    has_worked |= ReaderStep();
  }
}

bool DiskTier::CheckInvariants() const {
  MutexLock lock(mutex_);
  if (!memory_.records.CheckInvariants()) return false;
  uint32_t stored = 0, taken = 0;
  for (uint32_t i = 0; i < memory_.records.num_entries(); ++i) {
    const RecordIndex::Record& record = memory_.records.entry(i);
    if (record.state != RecordIndex::State::kStored) continue;
    ++stored;
    if (memory_.segments.state(record.slot) != SegmentTable::SlotState::kTaken) return false;
  }
  for (uint32_t i = 0; i < memory_.segments.max_segments(); ++i) {
    taken += memory_.segments.at(i).num_taken;
  }
  return taken >= stored;
}

}  // namespace kvasir
