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
    MutexLock lock(store_.mutex);
    if (store_.is_stopping) break;
    if (!std::exchange(store_.writer_has_news, false)) {
      lock.WaitFor(store_.writer_wake,
                   std::chrono::milliseconds(store_.queues.writes.empty() ? 250 : 20));
    }
  }
  UntilDone([&] { LeaveClosed(); });
}

// Whether it did something.
bool DiskTier::WriterStep() {
  {
    MutexLock lock(store_.mutex);
    store_.writer_has_news = false;
    if (store_.is_stopping) return false;
  }
  bool has_worked = false;
  bool is_on, leaves;
  std::string last_error;
  {
    MutexLock lock(store_.mutex);
    leaves = std::exchange(store_.state.must_leave, false);
    if (leaves) last_error = store_.LastErrorText();
    is_on = store_.state.now == State::kOn;
  }
  if (is_on && leaves) {
    LeaveFailed("too many errors" + last_error);
    is_on = false;
  }
  // While a read has not returned, no other one would be served.
  if (!is_on && store_.storage.MonotonicNs() >= retry_ns_ && !reader_.is_reading()) {
    const Status opened = OpenStore();
    if (!opened) StayOff(opened.error());
  }
  has_worked |= RunErases();
  {
    MutexLock lock(store_.mutex);
    is_on = store_.state.now == State::kOn;  // a forget that fails leaves the store
  }
  if (is_on) {
    bool is_due;
    {
      MutexLock lock(store_.mutex);
      is_due = IsGroupDue();
    }
    if (is_due) has_worked |= WriteGroup();
    has_worked |= Maintain();
  }
  has_worked |= AnswerFlushes();
  return has_worked;
}

bool DiskTier::IsGroupDue() {
  if (store_.state.now != State::kOn || store_.queues.writes.empty()) return false;
  if (store_.options.threads == 0 || store_.is_stopping || !flushes_.empty()) return true;
  const RecordBuffer& oldest = store_.buffers.at(store_.queues.writes.at(0));
  return store_.queues.queued_bytes >= kGroupBytes ||
         store_.storage.MonotonicNs() >= oldest.since_ns + kGroupNs;
}

// False: nothing could be done now.
bool DiskTier::WriteGroup() {
  const uint64_t start_ns = store_.storage.MonotonicNs();
  uint32_t wanted;
  {
    MutexLock lock(store_.mutex);
    const uint64_t most = std::max<uint64_t>(1, kGroupBytes / store_.options.shape.slot_bytes());
    wanted = static_cast<uint32_t>(std::min<uint64_t>(store_.queues.writes.size(), most));
  }
  // Key files take the room of records.
  if (std::exchange(needs_key_room_, false) && ReleaseSegment(EvictCause::kCap)) {
    no_growth_until_ns_ = store_.storage.MonotonicNs() + kKeyRoomNs;
  }
  if (!MakeSlotsFree(wanted)) return false;
  uint32_t queued;
  {
    MutexLock lock(store_.mutex);
    queued = store_.queues.writes.size();
    GatherGroup();
    if (group_.empty()) return store_.queues.writes.size() < queued;  // some were given up
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
    MutexLock lock(store_.mutex);
    store_.figures.stats.write_seconds.Observe(
        static_cast<double>(store_.storage.MonotonicNs() - start_ns) * 1e-9);
  }
  touched_.clear();
  progress_.Call();
  return true;
}

// Grows, else evicts, until so many slots are free or nothing more can be done. False: what waits
// is tried again soon.
bool DiskTier::MakeSlotsFree(uint32_t slots) {
  for (;;) {
    {
      MutexLock lock(store_.mutex);
      if (store_.segments.num_free() >= slots) return true;
    }
    if (store_.storage.MonotonicNs() >= no_growth_until_ns_) {
      const GrowEnd end = Grow();
      if (end == GrowEnd::kGrown) continue;
      if (end == GrowEnd::kBusy) return false;
    }
    MutexLock lock(store_.mutex);
    while (store_.segments.num_free() < slots && store_.Evict(EvictCause::kCap)) {
    }
    return true;
  }
}

// Takes what can be written now, in order: the record that one depends on is stored, or in the
// group before it.
void DiskTier::GatherGroup() {
  const uint64_t most = std::max<uint64_t>(1, kGroupBytes / store_.options.shape.slot_bytes());
  group_.clear();
  for (uint32_t left = store_.queues.writes.size(); left > 0; --left) {
    const uint32_t index = store_.queues.writes.PopFront();
    RecordBuffer& out = store_.buffers.at(index);
    std::optional<EntryId> on;
    if (out.has_after) on = store_.records.Find(out.after);
    const bool is_lost = out.has_after && !on && !FaultActive(Fault::kChildWithoutParent);
    if (out.is_cancelled || is_lost) {
      store_.queues.queued_bytes -= store_.options.shape.slot_bytes();
      store_.EndFailedWrite(index);
      continue;
    }
    const bool is_stored = !on || store_.records.at(*on).state == RecordIndex::State::kStored;
    const bool is_in_group = on && std::ranges::any_of(group_, [&](uint32_t g) {
                               return store_.buffers.at(g).entry == *on;
                             });
    const bool may_go = is_stored || is_in_group || FaultActive(Fault::kChildWithoutParent);
    std::optional<SlotRef> slot;
    if (may_go && group_.size() < most) slot = store_.segments.TakeSlot();
    if (!slot) {
      store_.queues.writes.PushBack(index);
      continue;
    }
    store_.queues.queued_bytes -= store_.options.shape.slot_bytes();
    const SegmentTable::Segment& segment = store_.segments.at(slot->segment);
    out.use = RecordBuffer::Use::kWriting;
    out.has_slot = true;
    out.slot = *slot;
    out.place = {.store = store_.id,
                 .segment = segment.number,
                 .slot = slot->slot,
                 .generation = segment.generation};
    out.is_bad = false;
    store_.segments.set_owner(*slot, out.owner);
    group_.push_back(index);
  }
  // Nothing fits, and nothing that is under way will make room: the first one is given up.
  if (group_.empty() && !store_.queues.writes.empty() && store_.segments.num_free() == 0 &&
      !store_.records.Coldest() && store_.queues.num_reads == 0) {
    const uint32_t index = store_.queues.writes.PopFront();
    store_.queues.queued_bytes -= store_.options.shape.slot_bytes();
    store_.EndFailedWrite(index);
  }
}

// The key files that the group's records need. False: one cannot be written.
bool DiskTier::WriteKeysOfGroup() {
  for (const uint32_t index : group_) {
    OwnerKey key;
    {
      MutexLock lock(store_.mutex);
      if (!store_.buffers.at(index).has_owner ||
          store_.keys.has_file(store_.buffers.at(index).owner))
        continue;
      key = store_.keys.KeyOf(store_.buffers.at(index).owner);
    }
    const StoreFiles& files = *store_.writing_files;
    const std::optional<bool> has_room = HasRoomFor(2 * kTierPageBytes);
    needs_key_room_ = has_room == false;
    IoStatus written = IoFailed(ENOSPC);
    if (has_room == true) {
      written =
          WriteKeyFile(store_.storage, files.keys.id(), store_.options.secret, store_.id, key);
    }
    OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
    if (!written) {
      if (has_room == true) store_.CountError(&TierStats::fault_write, written.error());
      MutexLock lock(store_.mutex);
      for (const uint32_t other : group_) store_.buffers.at(other).is_bad = true;
      return false;
    }
    MutexLock lock(store_.mutex);
    if (store_.buffers.at(index).has_owner)
      store_.keys.set_has_file(store_.buffers.at(index).owner);
  }
  return true;
}

void DiskTier::WriteRecords() {
  for (const uint32_t index : group_) {
    uint32_t segment, number;
    {
      MutexLock lock(store_.mutex);
      segment = store_.buffers.at(index).slot.segment;
      number = store_.buffers.at(index).place.segment;
    }
    auto found = std::ranges::find(touched_, segment, &Touched::segment);
    if (found == touched_.end()) {
      IoResult<OpenedFile> file =
          Own(store_.storage, store_.storage.OpenFile(store_.writing_files->folder.id(),
                                                      SegmentFileName(number), OpenMode::kWrite));
      if (!file) store_.CountError(&TierStats::fault_write, file.error());
      touched_.push_back({.segment = segment,
                          .file = file ? std::move(*file) : OpenedFile(),
                          .has_failed = !file});
      found = touched_.end() - 1;
    }
    IoStatus written = IoFailed(EIO);
    if (!found->has_failed) {
      written = WriteRecord(index, found->file.id());
      if (!written && written.error() != ECANCELED) {
        store_.CountError(&TierStats::fault_write, written.error());
      }
      if (!written) UnwriteHeader(index, found->file.id());
    }
    MutexLock lock(store_.mutex);
    store_.buffers.at(index).is_bad = !written;
    if (written) {
      store_.figures.stats.written_bytes += store_.options.shape.slot_bytes();
      store_.figures.stats.written_today_bytes += store_.options.shape.slot_bytes();
    }
  }
}

IoStatus DiskTier::WriteRecord(uint32_t index, FileId file) {
  RecordPublic record;
  OwnerKey key;
  SegmentShape shape;
  SlotRef slot;
  {
    MutexLock lock(store_.mutex);
    const RecordBuffer& out = store_.buffers.at(index);
    if (!out.has_owner || out.is_cancelled) return IoFailed(ECANCELED);
    key = store_.keys.KeyOf(out.owner);
    slot = out.slot;
    shape = store_.segments.at(slot.segment).shape;
    record = {.placings = out.placings,
              .place = out.place,
              .name = out.name,
              .namespace_id = key.namespace_id,
              .identity = store_.options.identity,
              .parent = out.parent,
              .after = out.has_after ? std::optional(out.after) : std::nullopt,
              .payload_bytes = static_cast<uint32_t>(store_.options.shape.payload_bytes),
              .hour = store_.clock.NowHour(),
              .salt = out.salt,
              .payload_tag = out.payload_tag};
  }
  // The tokens stay in the buffer: a record that cannot be stored here is sealed for another place.
  const std::span<std::byte> header =
      store_.buffers.ScratchOf(0).first(shape.record.header_bytes());
  const uint64_t token_bytes = uint64_t{4} * shape.record.block_tokens;
  AesKey record_key = RecordKeyOf(key.key, record.salt);
  const bool sealed =
      SealHeader(record_key, record, shape.record.block_tokens,
                 store_.buffers.HeaderOf(index).subspan(kPublicBytes, token_bytes), header);
  OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
  OPENSSL_cleanse(record_key.data(), record_key.size());
  if (!sealed) return IoFailed(ENOMEM);
  IoStatus written =
      WriteAll(store_.storage, file, store_.buffers.PayloadOf(index), shape.payload_at(slot.slot));
  if (written) written = WriteAll(store_.storage, file, header, shape.header_at(slot.slot));
  OPENSSL_cleanse(header.data(), header.size());
  return written;
}

// A segment whose sync failed is abandoned: what the kernel dropped then, a later sync would not
// mention. Its cache still shows the records; their headers become zeros there, so that nobody who
// opens the store before a crash takes them for stored.
void DiskTier::SyncSegments() {
  for (Touched& one : touched_) {
    if (one.has_failed) continue;
    const IoStatus synced = store_.storage.SyncData(one.file.id());
    if (synced || FaultActive(Fault::kBelievedSync)) continue;
    one.has_failed = true;
    store_.CountError(&TierStats::fault_sync, synced.error());
    {
      MutexLock lock(store_.mutex);
      store_.segments.Abandon(one.segment);
    }
    for (const uint32_t index : group_) {
      if (store_.buffers.at(index).slot.segment == one.segment) UnwriteHeader(index, one.file.id());
    }
  }
}

// A slot's payload may be new and its header that of the record before: whoever opens the store
// again must not find the old record.
void DiskTier::UnwriteHeader(uint32_t index, FileId file) {
  SegmentShape shape;
  uint32_t slot;
  {
    MutexLock lock(store_.mutex);
    slot = store_.buffers.at(index).slot.slot;
    shape = store_.segments.at(store_.buffers.at(index).slot.segment).shape;
  }
  (void)EraseBytes(store_.storage, file, shape.header_at(slot), shape.record.header_bytes());
}

void DiskTier::EndGroup() {
  MutexLock lock(store_.mutex);
  std::vector<uint32_t>& again = dropped_group_;
  again.clear();
  for (const uint32_t index : group_) {
    RecordBuffer& out = store_.buffers.at(index);
    const auto touched = std::ranges::find(touched_, out.slot.segment, &Touched::segment);
    const bool is_synced = touched != touched_.end() && !touched->has_failed && !out.is_bad;
    if (out.is_cancelled) {
      store_.EndFailedWrite(index);
      continue;
    }
    const bool is_anchored =
        store_.records.IsAnchored(out.entry) || FaultActive(Fault::kChildWithoutParent);
    if (is_synced && is_anchored) {
      store_.records.SetStored(out.entry, out.slot);
      store_.segments.SetEntry(out.slot, out.entry);
      ++store_.figures.stats.blocks;
      store_.keys.EndUse(out.owner);
      store_.FreeBufferOf(index);
      continue;
    }
    store_.segments.Condemn(out.slot);  // the slot may hold old or new bytes
    out.has_slot = false;
    if (++out.placings > kMaxPlacings) {
      store_.EndFailedWrite(index);
      continue;
    }
    out.use = RecordBuffer::Use::kQueued;
    again.push_back(index);
  }
  // In front, in their order.
  for (auto index = again.rbegin(); index != again.rend(); ++index) {
    store_.queues.writes.PushFront(*index);
    store_.queues.queued_bytes += store_.options.shape.slot_bytes();
  }
  group_.clear();
}

// Of those for whom nothing that came before them is under way any more.
void DiskTier::FindAnswers() {
  MutexLock lock(store_.mutex);
  uint64_t oldest = store_.queues.last_write + 1;
  for (uint32_t i = 0; i < store_.buffers.size() && !flushes_.empty(); ++i) {
    const RecordBuffer& one = store_.buffers.at(i);
    if (one.use == RecordBuffer::Use::kQueued || one.use == RecordBuffer::Use::kWriting) {
      oldest = std::min(oldest, one.number);
    }
  }
  const bool is_on = store_.state.now == State::kOn;
  for (FlushJob& job : flushes_) {
    if (job.answer || (is_on && oldest <= job.number)) continue;
    if (!is_on) {
      job.answer =
          Fail(Code::kUnavailable, "disk tier: {}: {}", store_.options.folder, store_.state.reason);
    } else if (!store_.state.full_reason.empty()) {
      job.answer = Fail(Code::kUnavailable, "disk tier: {}: {}", store_.options.folder,
                        store_.state.full_reason);
    } else if (store_.figures.stats.dropped_failed > job.dropped) {
      job.answer = Fail(Code::kUnavailable, "disk tier: {}: {} blocks could not be stored{}",
                        store_.options.folder, store_.figures.stats.dropped_failed - job.dropped,
                        store_.LastErrorText());
    } else {
      job.answer = TierFlushed{.durable = store_.state.is_durable,
                               .blocks = store_.figures.stats.blocks - job.blocks,
                               .bytes = store_.figures.stats.written_bytes - job.bytes};
    }
  }
}

// Whether a callback was called. One that throws is called again in the next step.
bool DiskTier::AnswerFlushes() {
  bool has_flushes;
  {
    MutexLock lock(store_.mutex);
    has_flushes = store_.state.now == State::kOn && !flushes_.empty();
  }
  if (has_flushes) (void)LeaveIfGone();  // what nobody finds again is not durable
  FindAnswers();
  bool has_told = false;
  for (;;) {
    std::list<FlushJob> job;
    {
      MutexLock lock(store_.mutex);
      const auto first = std::ranges::find_if(
          flushes_, [](const FlushJob& one) { return one.answer.has_value(); });
      if (first == flushes_.end()) break;
      job.splice(job.end(), flushes_, first);
    }
    if (ReportFlush(job.front())) {
      has_told = true;
      continue;
    }
    MutexLock lock(store_.mutex);
    flushes_.splice(flushes_.end(), job);
    break;
  }
  if (has_told) progress_.Call();
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
