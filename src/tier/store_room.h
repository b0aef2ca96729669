// StoreRoom: how much a store may have of its folder and of the device, and what leaves for that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tier/segment_files.h"
#include "tier/store.h"

namespace kvasir {

// The writer's alone, except Reserve. REQUIRES, for all other calls: the store is open.
class StoreRoom {
 public:
  StoreRoom(Store& store, SegmentFiles& segments) : store_(store), segments_(segments) {}

  // Makes segments leave so many bytes of the cap to the folder's sessions, from the next
  // FitReserved on. Thread-safe; does not wait.
  void Reserve(uint64_t bytes);
  // Calls FitCap, if more was reserved since the last call.
  void FitReserved();

  // Grows, else evicts, until so many slots are free or nothing more can be done. False: the
  // folder's lock is taken for a moment; what waits is tried again soon.
  bool MakeSlotsFree(uint32_t slots);
  // Gives a segment back for other files of the store. False: there is none to give.
  bool GiveSegment();
  // Returns whether the folder may take `bytes` more. Absent: it could not be found out; counted.
  std::optional<bool> HasRoomFor(uint64_t bytes);
  // Gives back what is more than the cap: it may be smaller than before.
  void FitCap();
  // Gives segments back while the disk is nearly full, and, one at a time, while several servers
  // share a full folder and this one has more than its equal part.
  void GiveBack();
  // Evicts what was not used for the time to live.
  void ExpireOld();
  // Warns once when the tier has no segment and the device has no room for one.
  void NoteRoom();
  // Keeps a spare file, in the tier's folder, for the writes of an erase.
  void KeepRoomToErase(FileId root);

 private:
  // kBusy: another process or the file of sessions has the folder's lock, for a moment.
  enum class GrowEnd : uint8_t { kGrown, kFull, kFailed, kBusy };
  GrowEnd Grow();
  GrowEnd GrowLocked();
  // Returns how many bytes under the cap, or on the device, are missing for `bytes` more. Absent:
  // it could not be found out; counted.
  std::optional<uint64_t> MissingRoom(uint64_t bytes);
  std::optional<uint64_t> MissingSpace(uint64_t bytes);
  std::optional<bool> HasFreeSpace(uint64_t bytes);
  bool RemoveForeignSegment();
  std::vector<std::string> OtherStores(bool are_locked);

  Store& store_;
  SegmentFiles& segments_;
  uint64_t reserved_bytes_ KV_GUARDED_BY(store_.mutex) = 0;  // beyond kSessionBytes
  bool must_fit_ KV_GUARDED_BY(store_.mutex) = false;        // it has grown
  uint64_t no_growth_until_ns_ = 0;
  uint64_t busy_since_ns_ = 0;  // 0: the last Grow had the folder's lock
};

}  // namespace kvasir
