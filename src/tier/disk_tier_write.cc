// DiskTier: the writer. Groups of records are written, synced, and only then called stored.
#include <openssl/crypto.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/fault.h"
#include "base/log.h"
#include "base/result.h"
#include "base/until_done.h"
#include "tier/disk_tier.h"

namespace kvasir {
namespace {

constexpr uint64_t kGroupNs = 100'000'000;
constexpr uint64_t kGroupBytes = uint64_t{4} << 20;
constexpr uint8_t kMaxPlacings = 3;
constexpr uint64_t kKeyRoomNs = 1'000'000'000;  // no segment takes the room of key files

}  // namespace

void DiskTier::WriterLoop() {
  for (;;) {
    try {
      while (WriterStep()) {
      }
    } catch (...) {
      // What was under way may be half done: it is dropped, and the store is read again later.
      UntilDone([&] { LeaveStore(State::kBroken, "the system is out of memory"); });
    }
    MutexLock lock(mutex_);
    if (is_stopping_) break;
    if (!std::exchange(writer_has_news_, false)) {
      lock.WaitFor(writer_wake_, std::chrono::milliseconds(memory_.write_queue.empty() ? 250 : 20));
    }
  }
  UntilDone([&] { LeaveClosed(); });
}

// Whether it did something.
bool DiskTier::WriterStep() {
  {
    MutexLock lock(mutex_);
    writer_has_news_ = false;
    if (is_stopping_) return false;
  }
  bool has_worked = false;
  bool is_on, leaves, is_reading;
  std::string last_error;
  {
    MutexLock lock(mutex_);
    is_reading = reading_since_ns_ > 0;
    leaves = std::exchange(leaves_when_idle_, false);
    if (leaves) last_error = LastErrorText();
    is_on = state_ == State::kOn;
  }
  if (is_on && leaves) {
    LeaveFailed("too many errors" + last_error);
    is_on = false;
  }
  // While a read has not returned, no other one would be served.
  if (!is_on && storage_.MonotonicNs() >= retry_ns_ && !is_reading) {
    const Status opened = OpenStore();
    if (!opened) StayOff(opened.error());
  }
  has_worked |= RunErases();
  {
    MutexLock lock(mutex_);
    is_on = state_ == State::kOn;  // a forget that fails leaves the store
  }
  if (is_on) {
    bool is_due;
    {
      MutexLock lock(mutex_);
      is_due = IsGroupDue();
    }
    if (is_due) has_worked |= WriteGroup();
    has_worked |= Maintain();
  }
  has_worked |= AnswerFlushes();
  return has_worked;
}

bool DiskTier::IsGroupDue() {
  if (state_ != State::kOn || memory_.write_queue.empty()) return false;
  if (options_.threads == 0 || is_stopping_ || !flushes_.empty()) return true;
  const Buffer& oldest = buffer(memory_.write_queue.at(0));
  return queued_bytes_ >= kGroupBytes || storage_.MonotonicNs() >= oldest.since_ns + kGroupNs;
}

// False: nothing could be done now.
bool DiskTier::WriteGroup() {
  const uint64_t start_ns = storage_.MonotonicNs();
  uint32_t wanted;
  {
    MutexLock lock(mutex_);
    const uint64_t most = std::max<uint64_t>(1, kGroupBytes / options_.shape.slot_bytes());
    wanted = static_cast<uint32_t>(std::min<uint64_t>(memory_.write_queue.size(), most));
  }
  // Key files take the room of records.
  if (std::exchange(needs_key_room_, false) && ReleaseSegment(EvictCause::kCap)) {
    no_growth_until_ns_ = storage_.MonotonicNs() + kKeyRoomNs;
  }
  if (!MakeSlotsFree(wanted)) return false;
  uint32_t queued;
  {
    MutexLock lock(mutex_);
    queued = memory_.write_queue.size();
    GatherGroup();
    if (group_.empty()) return memory_.write_queue.size() < queued;  // some were given up
  }
  if (WriteKeysOfGroup()) WriteRecords();
  if (FaultActive(Fault::kStoredBeforeSync)) {
    EndGroup();
    SyncSegments();
  } else {
    SyncSegments();
    EndGroup();
  }
  {
    MutexLock lock(mutex_);
    stats_.write_seconds.Observe(static_cast<double>(storage_.MonotonicNs() - start_ns) * 1e-9);
  }
  touched_.clear();
  CallProgress();
  return true;
}

// Grows, else evicts, until so many slots are free or nothing more can be done. False: what waits
// is tried again soon.
bool DiskTier::MakeSlotsFree(uint32_t slots) {
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (memory_.segments.num_free() >= slots) return true;
    }
    if (storage_.MonotonicNs() >= no_growth_until_ns_) {
      const GrowEnd end = Grow();
      if (end == GrowEnd::kGrown) continue;
      if (end == GrowEnd::kBusy) return false;
    }
    MutexLock lock(mutex_);
    while (memory_.segments.num_free() < slots && Evict(EvictCause::kCap)) {
    }
    return true;
  }
}

// Takes what can be written now, in order: the record that one depends on is stored, or in the
// group before it.
void DiskTier::GatherGroup() {
  const uint64_t most = std::max<uint64_t>(1, kGroupBytes / options_.shape.slot_bytes());
  group_.clear();
  for (uint32_t left = memory_.write_queue.size(); left > 0; --left) {
    const uint32_t index = memory_.write_queue.PopFront();
    Buffer& out = buffer(index);
    std::optional<EntryId> on;
    if (out.has_after) on = memory_.records.Find(out.after);
    const bool is_lost = out.has_after && !on && !FaultActive(Fault::kChildWithoutParent);
    if (out.is_cancelled || is_lost) {
      queued_bytes_ -= options_.shape.slot_bytes();
      EndFailedWrite(index);
      continue;
    }
    const bool is_stored = !on || memory_.records.at(*on).state == RecordIndex::State::kStored;
    const bool is_in_group =
        on && std::ranges::any_of(group_, [&](uint32_t g) { return buffer(g).entry == *on; });
    const bool may_go = is_stored || is_in_group || FaultActive(Fault::kChildWithoutParent);
    std::optional<SlotRef> slot;
    if (may_go && group_.size() < most) slot = memory_.segments.TakeSlot();
    if (!slot) {
      memory_.write_queue.PushBack(index);
      continue;
    }
    queued_bytes_ -= options_.shape.slot_bytes();
    const SegmentTable::Segment& segment = memory_.segments.at(slot->segment);
    out.use = Buffer::Use::kWriting;
    out.has_slot = true;
    out.slot = *slot;
    out.place = {.store = store_,
                 .segment = segment.number,
                 .slot = slot->slot,
                 .generation = segment.generation};
    out.is_bad = false;
    memory_.segments.set_owner(*slot, out.owner);
    group_.push_back(index);
  }
  // Nothing fits, and nothing that is under way will make room: the first one is given up.
  if (group_.empty() && !memory_.write_queue.empty() && memory_.segments.num_free() == 0 &&
      !memory_.records.Coldest() && read_buffers_ == 0) {
    const uint32_t index = memory_.write_queue.PopFront();
    queued_bytes_ -= options_.shape.slot_bytes();
    EndFailedWrite(index);
  }
}

// The key files that the group's records need. False: one cannot be written.
bool DiskTier::WriteKeysOfGroup() {
  for (const uint32_t index : group_) {
    OwnerKey key;
    {
      MutexLock lock(mutex_);
      if (!buffer(index).has_owner || keys_.has_file(buffer(index).owner)) continue;
      key = keys_.KeyOf(buffer(index).owner);
    }
    const StoreFiles& files = *writing_files_;
    const std::optional<bool> has_room = HasRoomFor(2 * kTierPageBytes);
    needs_key_room_ = has_room == false;
    IoStatus written = IoFailed(ENOSPC);
    if (has_room == true) {
      written = WriteKeyFile(storage_, files.keys.id(), options_.secret, store_, key);
    }
    OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
    if (!written) {
      if (has_room == true) CountError(&TierStats::fault_write, written.error());
      MutexLock lock(mutex_);
      for (const uint32_t other : group_) buffer(other).is_bad = true;
      return false;
    }
    MutexLock lock(mutex_);
    if (buffer(index).has_owner) keys_.set_has_file(buffer(index).owner);
  }
  return true;
}

void DiskTier::WriteRecords() {
  for (const uint32_t index : group_) {
    uint32_t segment, number;
    {
      MutexLock lock(mutex_);
      segment = buffer(index).slot.segment;
      number = buffer(index).place.segment;
    }
    auto found = std::ranges::find(touched_, segment, &Touched::segment);
    if (found == touched_.end()) {
      IoResult<OpenedFile> file =
          Own(storage_, storage_.OpenFile(writing_files_->folder.id(), SegmentFileName(number),
                                          OpenMode::kWrite));
      if (!file) CountError(&TierStats::fault_write, file.error());
      touched_.push_back({.segment = segment,
                          .file = file ? std::move(*file) : OpenedFile(),
                          .has_failed = !file});
      found = touched_.end() - 1;
    }
    IoStatus written = IoFailed(EIO);
    if (!found->has_failed) {
      written = WriteRecord(index, found->file.id());
      if (!written && written.error() != ECANCELED) {
        CountError(&TierStats::fault_write, written.error());
      }
      if (!written) UnwriteHeader(index, found->file.id());
    }
    MutexLock lock(mutex_);
    buffer(index).is_bad = !written;
    if (written) {
      stats_.written_bytes += options_.shape.slot_bytes();
      stats_.written_today_bytes += options_.shape.slot_bytes();
    }
  }
}

IoStatus DiskTier::WriteRecord(uint32_t index, FileId file) {
  RecordPublic record;
  OwnerKey key;
  SegmentShape shape;
  SlotRef slot;
  {
    MutexLock lock(mutex_);
    const Buffer& out = buffer(index);
    if (!out.has_owner || out.is_cancelled) return IoFailed(ECANCELED);
    key = keys_.KeyOf(out.owner);
    slot = out.slot;
    shape = memory_.segments.at(slot.segment).shape;
    record = {.placings = out.placings,
              .place = out.place,
              .name = out.name,
              .namespace_id = key.namespace_id,
              .identity = options_.identity,
              .parent = out.parent,
              .after = out.has_after ? std::optional(out.after) : std::nullopt,
              .payload_bytes = static_cast<uint32_t>(options_.shape.payload_bytes),
              .hour = NowHour(),
              .salt = out.salt,
              .payload_tag = out.payload_tag};
  }
  // The tokens stay in the buffer: a record that cannot be stored here is sealed for another place.
  const std::span<std::byte> header = ScratchOf(0).first(shape.record.header_bytes());
  const uint64_t token_bytes = uint64_t{4} * shape.record.block_tokens;
  AesKey record_key = RecordKeyOf(key.key, record.salt);
  const bool sealed = SealHeader(record_key, record, shape.record.block_tokens,
                                 HeaderOf(index).subspan(kPublicBytes, token_bytes), header);
  OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
  OPENSSL_cleanse(record_key.data(), record_key.size());
  if (!sealed) return IoFailed(ENOMEM);
  IoStatus written = WriteAll(storage_, file, PayloadOf(index), shape.payload_at(slot.slot));
  if (written) written = WriteAll(storage_, file, header, shape.header_at(slot.slot));
  OPENSSL_cleanse(header.data(), header.size());
  return written;
}

// A segment whose sync failed is abandoned: what the kernel dropped then, a later sync would not
// mention. Its cache still shows the records; their headers become zeros there, so that nobody who
// opens the store before a crash takes them for stored.
void DiskTier::SyncSegments() {
  for (Touched& one : touched_) {
    if (one.has_failed) continue;
    const IoStatus synced = storage_.SyncData(one.file.id());
    if (synced || FaultActive(Fault::kBelievedSync)) continue;
    one.has_failed = true;
    CountError(&TierStats::fault_sync, synced.error());
    {
      MutexLock lock(mutex_);
      memory_.segments.Abandon(one.segment);
    }
    for (const uint32_t index : group_) {
      if (buffer(index).slot.segment == one.segment) UnwriteHeader(index, one.file.id());
    }
  }
}

// A slot's payload may be new and its header that of the record before: whoever opens the store
// again must not find the old record.
void DiskTier::UnwriteHeader(uint32_t index, FileId file) {
  SegmentShape shape;
  uint32_t slot;
  {
    MutexLock lock(mutex_);
    slot = buffer(index).slot.slot;
    shape = memory_.segments.at(buffer(index).slot.segment).shape;
  }
  (void)EraseBytes(storage_, file, shape.header_at(slot), shape.record.header_bytes());
}

void DiskTier::EndGroup() {
  MutexLock lock(mutex_);
  std::vector<uint32_t>& again = dropped_group_;
  again.clear();
  for (const uint32_t index : group_) {
    Buffer& out = buffer(index);
    const auto touched = std::ranges::find(touched_, out.slot.segment, &Touched::segment);
    const bool is_synced = touched != touched_.end() && !touched->has_failed && !out.is_bad;
    if (out.is_cancelled) {
      EndFailedWrite(index);
      continue;
    }
    const bool is_anchored =
        memory_.records.IsAnchored(out.entry) || FaultActive(Fault::kChildWithoutParent);
    if (is_synced && is_anchored) {
      memory_.records.SetStored(out.entry, out.slot);
      memory_.segments.SetEntry(out.slot, out.entry);
      ++stats_.blocks;
      keys_.EndUse(out.owner);
      FreeBufferOf(index);
      continue;
    }
    memory_.segments.Condemn(out.slot);  // the slot may hold old or new bytes
    out.has_slot = false;
    if (++out.placings > kMaxPlacings) {
      EndFailedWrite(index);
      continue;
    }
    out.use = Buffer::Use::kQueued;
    again.push_back(index);
  }
  // In front, in their order.
  for (auto index = again.rbegin(); index != again.rend(); ++index) {
    memory_.write_queue.PushFront(*index);
    queued_bytes_ += options_.shape.slot_bytes();
  }
  group_.clear();
}

// A write that comes to nothing.
void DiskTier::EndFailedWrite(uint32_t index) {
  Buffer& out = buffer(index);
  if (!out.is_cancelled) ++stats_.dropped_failed;
  if (out.has_slot) {
    memory_.segments.Condemn(out.slot);  // its bytes, or others' from before, may be on the disk
  }
  if (out.has_entry) {
    memory_.records.Remove(out.entry);
    keys_.EndUse(out.owner);
  }
  if (out.has_owner) keys_.EndUse(out.owner);
  FreeBufferOf(index);
}

// Of those for whom nothing that came before them is under way any more.
void DiskTier::FindAnswers() {
  MutexLock lock(mutex_);
  uint64_t oldest = last_write_ + 1;
  for (uint32_t i = 0; i < num_buffers_ && !flushes_.empty(); ++i) {
    const Buffer& one = buffer(i);
    if (one.use == Buffer::Use::kQueued || one.use == Buffer::Use::kWriting) {
      oldest = std::min(oldest, one.number);
    }
  }
  const bool is_on = state_ == State::kOn;
  for (FlushJob& job : flushes_) {
    if (job.answer || (is_on && oldest <= job.number)) continue;
    if (!is_on) {
      job.answer = Fail(Code::kUnavailable, "disk tier: {}: {}", options_.folder, reason_);
    } else if (!full_reason_.empty()) {
      job.answer = Fail(Code::kUnavailable, "disk tier: {}: {}", options_.folder, full_reason_);
    } else if (stats_.dropped_failed > job.dropped) {
      job.answer = Fail(Code::kUnavailable, "disk tier: {}: {} blocks could not be stored{}",
                        options_.folder, stats_.dropped_failed - job.dropped, LastErrorText());
    } else {
      job.answer = TierFlushed{.durable = is_durable_,
                               .blocks = stats_.blocks - job.blocks,
                               .bytes = stats_.written_bytes - job.bytes};
    }
  }
}

// Whether a callback was called. One that throws is called again in the next step.
bool DiskTier::AnswerFlushes() {
  bool has_flushes;
  {
    MutexLock lock(mutex_);
    has_flushes = state_ == State::kOn && !flushes_.empty();
  }
  if (has_flushes) (void)LeaveIfGone();  // what nobody finds again is not durable
  FindAnswers();
  bool has_told = false;
  for (;;) {
    std::list<FlushJob> job;
    {
      MutexLock lock(mutex_);
      const auto first = std::ranges::find_if(
          flushes_, [](const FlushJob& one) { return one.answer.has_value(); });
      if (first == flushes_.end()) break;
      job.splice(job.end(), flushes_, first);
    }
    if (ReportFlush(job.front())) {
      has_told = true;
      continue;
    }
    MutexLock lock(mutex_);
    flushes_.splice(flushes_.end(), job);
    break;
  }
  if (has_told) CallProgress();
  return has_told;
}

// False: the callback threw.
bool DiskTier::ReportFlush(FlushJob& job) {
  try {
    job.done(*job.answer);
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace kvasir
