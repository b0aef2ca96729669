// SegmentTable: the segments of the open store and what each of their slots holds.
#pragma once

#include <cstdint>
#include <optional>

#include "base/arena.h"
#include "tier/owner_keys.h"
#include "tier/record_index.h"
#include "tier/segment.h"

namespace kvasir {

// Slots are free, taken (by a record or a write), condemned: their bytes must become zeros before
// they are taken again, or unread: they hold a record of an owner whose key cannot be unsealed, and
// stay as they are until the segment leaves. A slot remembers whose bytes it may hold, also when it
// is free, so that an erase finds them, and whether this process knows them to be zeros. All memory
// is taken at construction. Thread-compatible.
class SegmentTable {
 public:
  struct Segment {
    bool is_open = false;
    bool is_abandoned = false;  // a sync failed: nothing is written to it any more
    bool has_new_hours = false;
    uint32_t number = 0;
    uint64_t generation = 0;
    SegmentShape shape;
    uint32_t first = 0;      // of its slots, among all
    uint32_t num_free = 0;   // slots
    uint32_t num_taken = 0;  // slots
    uint32_t num_unread = 0;
    uint32_t readers = 0;  // of its slots
    uint32_t next = 0;     // where the search for a free slot goes on
  };
  enum class SlotState : uint8_t { kFree, kTaken, kCondemned, kUnread };

  SegmentTable(Arena& arena, uint32_t max_slots);
  void Clear();

  // Adds a segment to the table, its slots free, with any bytes. Absent: the table has no room for
  // its slots.
  std::optional<uint32_t> Add(const SegmentHead& head);
  void Remove(uint32_t segment);  // REQUIRES: no slot is taken or read

  uint32_t max_segments() const { return max_segments_; }
  uint32_t num_open() const { return num_open_; }
  uint32_t num_free() const { return num_free_; }  // slots that TakeSlot may give
  Segment& at(uint32_t segment) { return segments_[segment]; }
  const Segment& at(uint32_t segment) const { return segments_[segment]; }

  // Takes slots side by side, as far as they are free.
  std::optional<SlotRef> TakeSlot();
  bool TakeThis(SlotRef slot);  // false: it is not free
  void FreeSlot(SlotRef slot);
  void Condemn(SlotRef slot);    // from any state
  void SetUnread(SlotRef slot);  // REQUIRES: it is free
  SlotState state(SlotRef slot) const { return slot_at(slot).state; }
  void set_owner(SlotRef slot, OwnerId owner) {
    slot_at(slot).owner = owner;
    slot_at(slot).has_owner = true;
  }
  // Notes that its bytes are zeros, and that this is durable. REQUIRES: it is free.
  void SetZero(SlotRef slot) {
    slot_at(slot).has_owner = false;
    slot_at(slot).is_zero = true;
  }
  bool is_zero(SlotRef slot) const { return slot_at(slot).is_zero; }
  std::optional<OwnerId> owner(SlotRef slot) const {
    const Slot& one = slot_at(slot);
    return one.has_owner ? std::optional(one.owner) : std::nullopt;
  }
  // Sets the record that a taken slot holds, once it is stored.
  void SetEntry(SlotRef slot, EntryId entry) {
    slot_at(slot).entry = entry;
    slot_at(slot).has_entry = true;
  }
  std::optional<EntryId> entry(SlotRef slot) const {
    const Slot& one = slot_at(slot);
    return one.has_entry ? std::optional(one.entry) : std::nullopt;
  }
  void AddReader(SlotRef slot);
  void EndReader(SlotRef slot);
  void Abandon(uint32_t segment);

 private:
  struct Slot {
    EntryId entry{};
    OwnerId owner{};
    uint16_t readers = 0;
    SlotState state = SlotState::kFree;
    bool has_owner = false, has_entry = false, is_zero = false;
  };
  Slot& slot_at(SlotRef slot) { return slots_[segments_[slot.segment].first + slot.slot]; }
  const Slot& slot_at(SlotRef slot) const {
    return slots_[segments_[slot.segment].first + slot.slot];
  }
  std::optional<uint32_t> FirstFor(uint32_t slots) const;

  const uint32_t max_slots_, max_segments_;
  Segment* segments_;
  Slot* slots_;
  uint32_t num_open_ = 0, num_free_ = 0;
  uint32_t current_ = 0;  // the segment that is being filled
};

}  // namespace kvasir
