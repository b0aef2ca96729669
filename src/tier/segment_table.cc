#include "tier/segment_table.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {

// Makes a table for segments of 16 slots or more.
SegmentTable::SegmentTable(Arena& arena, uint32_t max_slots)
    : max_slots_(max_slots),
      max_segments_(max_slots / 16 + 1),
      segments_(arena.TakeArray<Segment>(max_segments_)),
      slots_(arena.TakeArray<Slot>(max_slots)) {
  if (segments_ != nullptr) Clear();
}

void SegmentTable::Clear() {
  std::fill_n(segments_, max_segments_, Segment{});
  std::fill_n(slots_, max_slots_, Slot{});
  num_open_ = num_free_ = current_ = 0;
}

std::optional<uint32_t> SegmentTable::FirstFor(uint32_t slots) const {
  uint32_t first = 0;
  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    for (uint32_t i = 0; i < max_segments_; ++i) {
      const Segment& one = segments_[i];
      const bool overlaps =
          one.is_open && first < one.first + one.shape.slots && one.first < first + slots;
      if (!overlaps) continue;
      first = one.first + one.shape.slots;
      has_moved = true;
    }
  }
  if (first + slots > max_slots_) return std::nullopt;
  return first;
}

std::optional<uint32_t> SegmentTable::Add(const SegmentHead& head) {
  const std::optional<uint32_t> first = FirstFor(head.shape.slots);
  const Segment* const end = segments_ + max_segments_;
  Segment* const place = std::find_if(segments_, segments_ + max_segments_,
                                      [](const Segment& s) { return !s.is_open; });
  if (!first || place == end) return std::nullopt;
  *place = {.is_open = true,
            .number = head.segment,
            .generation = head.generation,
            .shape = head.shape,
            .first = *first,
            .num_free = head.shape.slots};
  std::fill_n(slots_ + *first, head.shape.slots, Slot{});
  ++num_open_;
  num_free_ += head.shape.slots;
  return static_cast<uint32_t>(place - segments_);
}

void SegmentTable::Remove(uint32_t segment) {
  Segment& gone = segments_[segment];
  KV_CHECK(gone.is_open && gone.num_taken == 0 && gone.readers == 0);
  if (!gone.is_abandoned) num_free_ -= gone.num_free;
  gone = {};
  --num_open_;
}

std::optional<SlotRef> SegmentTable::TakeSlot() {
  for (uint32_t i = 0; num_free_ > 0 && i < max_segments_; ++i) {
    const uint32_t index = (current_ + i) % max_segments_;
    Segment& segment = segments_[index];
    if (!segment.is_open || segment.is_abandoned || segment.num_free == 0) continue;
    for (uint32_t k = 0; k < segment.shape.slots; ++k) {
      const SlotRef slot{index, (segment.next + k) % segment.shape.slots};
      if (slot_at(slot).readers > 0 || !TakeThis(slot)) continue;
      segment.next = slot.slot + 1;
      current_ = index;
      return slot;
    }
  }
  return std::nullopt;
}

bool SegmentTable::TakeThis(SlotRef slot) {
  Slot& one = slot_at(slot);
  if (one.state != SlotState::kFree) return false;
  one.state = SlotState::kTaken;
  one.is_zero = false;
  Segment& segment = segments_[slot.segment];
  --segment.num_free;
  ++segment.num_taken;
  if (!segment.is_abandoned) --num_free_;
  return true;
}

void SegmentTable::FreeSlot(SlotRef slot) {
  Slot& one = slot_at(slot);
  KV_CHECK(one.state != SlotState::kFree);
  Segment& segment = segments_[slot.segment];
  if (one.state == SlotState::kTaken) --segment.num_taken;
  if (one.state == SlotState::kUnread) --segment.num_unread;
  one.state = SlotState::kFree;
  one.has_entry = false;
  ++segment.num_free;
  if (!segment.is_abandoned) ++num_free_;
}

void SegmentTable::Condemn(SlotRef slot) {
  Slot& one = slot_at(slot);
  Segment& segment = segments_[slot.segment];
  if (one.state == SlotState::kCondemned) return;
  if (one.state != SlotState::kFree) FreeSlot(slot);
  --segment.num_free;
  if (!segment.is_abandoned) --num_free_;
  one.state = SlotState::kCondemned;
  one.has_entry = false;
}

void SegmentTable::SetUnread(SlotRef slot) {
  Condemn(slot);
  slot_at(slot).state = SlotState::kUnread;
  ++segments_[slot.segment].num_unread;
}

void SegmentTable::AddReader(SlotRef slot) {
  ++slot_at(slot).readers;
  ++segments_[slot.segment].readers;
}
void SegmentTable::EndReader(SlotRef slot) {
  KV_CHECK(slot_at(slot).readers > 0);
  --slot_at(slot).readers;
  --segments_[slot.segment].readers;
}

void SegmentTable::Abandon(uint32_t segment) {
  Segment& one = segments_[segment];
  if (one.is_abandoned) return;
  one.is_abandoned = true;
  num_free_ -= one.num_free;
}

}  // namespace kvasir
