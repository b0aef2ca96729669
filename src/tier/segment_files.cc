#include "tier/segment_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "tier/set_aside.h"
#include "tier/spare_file.h"

namespace kvasir {

void SegmentFiles::Begin(uint32_t next_number, std::vector<Unusable> unusable) {
  next_number_ = next_number;
  unusable_ = std::move(unusable);
  refusal_.reset();
}

bool SegmentFiles::Make() {
  refusal_.reset();
  SegmentHead head{.store = store_.id, .segment = next_number_};
  {
    MutexLock lock(store_.mutex);
    head.shape = ShapeOfSegment(store_.options.shape, store_.options.new_segment_bytes());
  }
  std::array<uint8_t, sizeof(head.generation)> random;
  if (!store_.storage.FillRandom(random)) return false;
  for (const uint8_t byte : random) head.generation = head.generation << 8 | byte;
  std::optional<uint32_t> added;
  {
    MutexLock lock(store_.mutex);
    added = store_.segments.Add(head);
    // Until it is durable nothing is written to it: the writer is the only one who takes slots.
  }
  if (!added) return false;
  const FileId folder = store_.writing_files->folder.id();
  const std::string name = SegmentFileName(next_number_);
  if (next_number_ < UINT32_MAX) ++next_number_;
  IoStatus made;
  {
    const IoResult<OpenedFile> file =
        Own(store_.storage, store_.storage.OpenFile(folder, name, OpenMode::kCreate));
    std::array<std::byte, kHeadBytes> bytes;
    EncodeHead(HeadKeyOf(store_.options.secret), head, bytes);
    if (!file) made = IoFailed(file.error());
    if (made) made = AllocateBytes(store_.storage, file->id(), head.shape.segment_bytes);
    if (made) made = WriteAll(store_.storage, file->id(), bytes, 0);
    if (made) made = store_.storage.SyncData(file->id());
  }
  if (made) made = store_.storage.SyncFolder(folder);
  if (made) {
    MutexLock lock(store_.mutex);
    for (uint32_t slot = 0; slot < head.shape.slots; ++slot) {
      store_.segments.SetZero({*added, slot});
    }
    return true;
  }
  if (made.error() != EEXIST && !store_.storage.Unlink(folder, name)) unusable_.push_back({name});
  if (IsFull(made.error())) {
    refusal_ = made.error();
  } else {
    store_.CountError(&TierStats::fault_write, made.error());
  }
  MutexLock lock(store_.mutex);
  store_.segments.Remove(*added);
  return false;
}

IoStatus SegmentFiles::Remove(uint32_t index, EvictCause cause) {
  std::string name;
  {
    MutexLock lock(store_.mutex);
    if (store_.segments.at(index).readers > 0) return IoFailed(EBUSY);
    store_.records.MarkLeaving([&](const RecordIndex& records, EntryId entry) {
      const RecordIndex::Record& record = records.at(entry);
      return record.state == RecordIndex::State::kStored && record.slot.segment == index;
    });
    for (uint32_t i = 0; i < store_.records.num_entries(); ++i) {
      const EntryId entry{i};
      const bool leaves = store_.records.IsLeaving(entry) &&
                          store_.records.at(entry).state == RecordIndex::State::kStored;
      if (!leaves) continue;  // a write that depends on one of them finds nothing, and ends
      if (store_.records.at(entry).readers > 0) store_.ForgetReadsOf(entry);
      ++(cause == EvictCause::kSpace ? store_.figures.stats.evicted_space
                                     : store_.figures.stats.evicted_cap);
      store_.DropRecord(entry);
    }
    name = SegmentFileName(store_.segments.at(index).number);
    for (uint32_t slot = 0; slot < store_.segments.at(index).shape.slots; ++slot) {
      const SlotRef ref{index, slot};
      const SegmentTable::SlotState state = store_.segments.state(ref);
      if (state == SegmentTable::SlotState::kCondemned ||
          state == SegmentTable::SlotState::kUnread) {
        store_.segments.FreeSlot(ref);  // it goes with the file
      }
    }
    store_.segments.Remove(index);
  }
  IoStatus removed = store_.storage.Unlink(store_.writing_files->folder.id(), name);
  if (removed) removed = store_.storage.SyncFolder(store_.writing_files->folder.id());
  if (removed) return {};
  store_.CountError(&TierStats::fault_write, removed.error());
  unusable_.push_back({name});
  return removed;
}

bool SegmentFiles::RemoveColdest(EvictCause cause) {
  std::optional<uint32_t> coldest;
  {
    MutexLock lock(store_.mutex);
    uint64_t coldest_order = UINT64_MAX;
    for (uint32_t i = 0; i < store_.segments.max_segments(); ++i) {
      const SegmentTable::Segment& segment = store_.segments.at(i);
      if (!segment.is_open || segment.readers > 0) continue;
      uint64_t order = 0;
      for (uint32_t slot = 0; slot < segment.shape.slots; ++slot) {
        const std::optional<EntryId> entry = store_.segments.entry({i, slot});
        if (entry) order = std::max(order, store_.records.at(*entry).order);
      }
      if (order >= coldest_order) continue;
      coldest = i;
      coldest_order = order;
    }
  }
  return coldest && Remove(*coldest, cause).has_value();
}

void SegmentFiles::RemoveAbandoned() {
  for (uint32_t i = 0;; ++i) {
    {
      MutexLock lock(store_.mutex);
      if (i >= store_.segments.max_segments()) return;
      const SegmentTable::Segment& segment = store_.segments.at(i);
      if (!segment.is_abandoned || segment.num_unread > 0 || segment.num_taken > 0 ||
          segment.readers > 0) {
        continue;
      }
    }
    (void)Remove(i, EvictCause::kCap);
  }
}

bool SegmentFiles::RemoveUnusable() {
  while (!unusable_.empty()) {
    const std::string name = std::move(unusable_.back().name);
    unusable_.pop_back();
    if (store_.storage.Unlink(store_.writing_files->folder.id(), name)) return true;
  }
  std::optional<uint32_t> unread;
  {
    MutexLock lock(store_.mutex);
    for (uint32_t i = 0; !unread && i < store_.segments.max_segments(); ++i) {
      const SegmentTable::Segment& segment = store_.segments.at(i);
      if (segment.num_unread > segment.num_taken && segment.readers == 0) unread = i;
    }
  }
  return unread && Remove(*unread, EvictCause::kCap).has_value();
}

IoStatus SegmentFiles::RemoveDamaged() {
  for (const Unusable& one : unusable_) {
    if (one.opens_elsewhere) continue;
    const auto removed = RemoveFile(store_.storage, store_.writing_files->folder.id(), one.name);
    if (!removed) return IoFailed(removed.error());
  }
  std::erase_if(unusable_, [](const Unusable& one) { return !one.opens_elsewhere; });
  return {};
}

}  // namespace kvasir
