#include "tier/record_writer.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/fault.h"
#include "tier/key_files.h"

namespace kvasir {
namespace {

constexpr uint8_t kMaxPlacings = 3;

}  // namespace

RecordWriter::RecordWriter(Store& store, StoreRoom& room) : store_(store), room_(room) {
  group_.reserve(store.buffers.size());
  again_.reserve(store.buffers.size());
}

bool RecordWriter::WriteIfDue() {
  {
    MutexLock lock(store_.mutex);
    if (!store_.IsGroupDue()) return false;
  }
  return WriteGroup();
}

void RecordWriter::DropGroup() {
  group_.clear();
  touched_.clear();
}

// Writes a group. False: nothing could be done now.
bool RecordWriter::WriteGroup() {
  const uint64_t start_ns = store_.storage.MonotonicNs();
  uint32_t wanted;
  {
    MutexLock lock(store_.mutex);
    const uint64_t most = store_.max_group();
    wanted = static_cast<uint32_t>(std::min<uint64_t>(store_.queues.writes.size(), most));
  }
  // Key files take the room of records.
  if (std::exchange(needs_key_room_, false)) (void)room_.GiveSegment();
  if (!room_.MakeSlotsFree(wanted)) return false;
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
  return true;
}

// Takes what can be written now, in order: the record that one depends on is stored, or stands
// before it in the group.
void RecordWriter::GatherGroup() {
  const uint64_t most = store_.max_group();
  group_.clear();
  for (uint32_t left = store_.queues.writes.size(); left > 0; --left) {
    const uint32_t index = store_.queues.writes.PopFront();
    RecordBuffer& out = store_.buffers.at(index);
    std::optional<EntryId> on;
    if (out.after) on = store_.records.Find(*out.after);
    const bool is_lost = out.after && !on && !FaultActive(Fault::kChildWithoutParent);
    if (out.is_cancelled || is_lost) {
      store_.queues.queued_bytes -= store_.options.shape.slot_bytes();
      store_.EndFailedWrite(index);
      continue;
    }
    const bool is_stored = !on || store_.records.at(*on).state == RecordIndex::State::kStored;
    const bool is_in_group = on && std::ranges::any_of(group_, [&](uint32_t g) {
                               return store_.buffers.at(g).entry == on;
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

// Writes the key files that the group's records need. False: one cannot be written.
bool RecordWriter::WriteKeysOfGroup() {
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
    const std::optional<bool> has_room = room_.HasRoomFor(2 * kTierPageBytes);
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

// Returns the segment's file, which it opens for the first record of the group that lies there.
RecordWriter::Touched& RecordWriter::Touch(uint32_t segment, uint32_t number) {
  const auto found = std::ranges::find(touched_, segment, &Touched::segment);
  if (found != touched_.end()) return *found;
  IoResult<OpenedFile> file =
      Own(store_.storage, store_.storage.OpenFile(store_.writing_files->folder.id(),
                                                  SegmentFileName(number), OpenMode::kWrite));
  if (!file) store_.CountError(&TierStats::fault_write, file.error());
  touched_.push_back(
      {.segment = segment, .file = file ? std::move(*file) : OpenedFile(), .has_failed = !file});
  return touched_.back();
}

void RecordWriter::WriteRecords() {
  for (const uint32_t index : group_) {
    uint32_t segment, number;
    {
      MutexLock lock(store_.mutex);
      segment = store_.buffers.at(index).slot.segment;
      number = store_.buffers.at(index).place.segment;
    }
    const Touched& touched = Touch(segment, number);
    IoStatus written = IoFailed(EIO);
    if (!touched.has_failed) {
      written = WriteRecord(index, touched.file.id());
      if (!written && written.error() != ECANCELED) {
        store_.CountError(&TierStats::fault_write, written.error());
      }
      if (!written) UnwriteHeader(index, touched.file.id());
    }
    MutexLock lock(store_.mutex);
    store_.buffers.at(index).is_bad = !written;
    if (written) {
      store_.figures.stats.written_bytes += store_.options.shape.slot_bytes();
      store_.figures.stats.written_today_bytes += store_.options.shape.slot_bytes();
    }
  }
}

IoStatus RecordWriter::WriteRecord(uint32_t index, FileId file) {
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
              .after = out.after,
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

// Syncs the segments of the group. One whose sync failed is abandoned: what the kernel dropped
// then, a later sync would not mention. Its cache still shows the records; their headers become
// zeros there, so that a process that opens the store before a crash does not take them for stored.
void RecordWriter::SyncSegments() {
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

// Zeros the header of a slot. Its payload may be new and its header that of the record before: a
// start must not find the old record.
void RecordWriter::UnwriteHeader(uint32_t index, FileId file) {
  SegmentShape shape;
  uint32_t slot;
  {
    MutexLock lock(store_.mutex);
    slot = store_.buffers.at(index).slot.slot;
    shape = store_.segments.at(store_.buffers.at(index).slot.segment).shape;
  }
  (void)EraseBytes(store_.storage, file, shape.header_at(slot), shape.record.header_bytes());
}

void RecordWriter::EndGroup() {
  MutexLock lock(store_.mutex);
  std::vector<uint32_t>& again = again_;
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
        store_.records.IsAnchored(*out.entry) || FaultActive(Fault::kChildWithoutParent);
    if (is_synced && is_anchored) {
      store_.records.SetStored(*out.entry, out.slot);
      store_.segments.SetEntry(out.slot, *out.entry);
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

}  // namespace kvasir
