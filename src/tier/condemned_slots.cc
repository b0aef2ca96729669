#include "tier/condemned_slots.h"

#include <cerrno>

#include "tier/erase_files.h"
#include "tier/key_files.h"
#include "tier/set_aside.h"

namespace kvasir {

bool CondemnedSlots::HasUnreadKeys() const {
  MutexLock lock(store_.mutex);
  return store_.state.has_unread_keys;
}

IoStatus CondemnedSlots::CondemnOrphans() {
  if (!HasUnreadKeys()) return {};
  const auto unread =
      UnreadKeys(store_.storage, store_.writing_files->keys.id(), store_.options.secret, store_.id);
  if (!unread) return IoFailed(unread.error());
  const IoResult<bool> has_links = HasLinkedKeys(store_.storage, store_.writing_files->folder.id());
  if (!has_links) return IoFailed(has_links.error());
  if (!unread->empty() || *has_links) return {};
  MutexLock lock(store_.mutex);
  store_.state.has_unread_keys = false;
  for (uint32_t i = 0; i < store_.segments.max_segments(); ++i) {
    for (uint32_t slot = 0; slot < store_.segments.at(i).shape.slots; ++slot) {
      const SlotRef ref{i, slot};
      const bool is_unread = store_.segments.state(ref) == SegmentTable::SlotState::kUnread;
      if (is_unread) store_.segments.Condemn(ref);
    }
  }
  return {};
}

IoStatus CondemnedSlots::ZeroAll(AbandonedSegments abandoned) {
  uint32_t num_segments;
  {
    MutexLock lock(store_.mutex);
    num_segments = store_.segments.max_segments();
  }
  for (uint32_t index = 0; index < num_segments; ++index) {
    std::vector<uint32_t> slots;
    bool leaves = false, has_unread = false;
    {
      MutexLock lock(store_.mutex);
      const SegmentTable::Segment& segment = store_.segments.at(index);
      if (!segment.is_open) continue;
      for (uint32_t slot = 0; slot < segment.shape.slots; ++slot) {
        if (store_.segments.state({index, slot}) == SegmentTable::SlotState::kCondemned) {
          slots.push_back(slot);
        }
      }
      if (segment.is_abandoned && abandoned == AbandonedSegments::kLeft) {
        slots.clear();
      }
      leaves = segment.is_abandoned && segment.readers == 0;
      has_unread = segment.is_abandoned && segment.num_unread > 0;
    }
    if (slots.empty()) continue;
    if (has_unread) return IoFailed(EIO);  // the store is opened anew for it
    const IoStatus done = leaves ? segments_.Remove(index, EvictCause::kCap) : Zero(index, slots);
    if (!done) return done;
  }
  return {};
}

IoStatus CondemnedSlots::Zero(uint32_t index, const std::vector<uint32_t>& slots) {
  SegmentShape shape;
  uint32_t number;
  {
    MutexLock lock(store_.mutex);
    shape = store_.segments.at(index).shape;
    number = store_.segments.at(index).number;
  }
  const IoResult<OpenedFile> file =
      Own(store_.storage, store_.storage.OpenFile(store_.writing_files->folder.id(),
                                                  SegmentFileName(number), OpenMode::kWrite));
  const IoStatus zeroed =
      file ? EraseSlots(store_.storage, file->id(), shape, slots) : IoFailed(file.error());
  if (!zeroed) {
    store_.CountError(&TierStats::fault_write, zeroed.error());
    return zeroed;
  }
  if (const IoStatus synced = store_.storage.SyncData(file->id()); !synced) {
    store_.CountError(&TierStats::fault_sync, synced.error());
    MutexLock lock(store_.mutex);
    store_.segments.Abandon(index);
    return synced;
  }
  MutexLock lock(store_.mutex);
  for (const uint32_t slot : slots) {
    store_.segments.FreeSlot({index, slot});
    store_.segments.SetZero({index, slot});
  }
  return {};
}

}  // namespace kvasir
