#include "tier/segment_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/rounds_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kMaxSlots = 72;
using SlotKind = SegmentTable::SlotState;

SegmentHead HeadOf(uint32_t number, uint32_t slots) {
  return {.shape = {.record = {.block_tokens = 16, .payload_bytes = 600}, .slots = slots},
          .segment = number,
          .generation = 1000 + number};
}

class SegmentTableTest : public testing::Test {
 protected:
  SegmentTableTest() {
    Arena planned;
    const SegmentTable counted(planned, kMaxSlots);
    arena_ = std::move(*Arena::Create(planned.used()));
    table_.emplace(arena_, kMaxSlots);
    EXPECT_EQ(arena_.used(), arena_.size());
  }

  Arena arena_;
  std::optional<SegmentTable> table_;
};

// What the twin knows of a segment.
struct TwinSegment {
  bool is_abandoned = false;
  std::vector<SlotKind> states;
  std::vector<uint32_t> readers;

  uint32_t Count(SlotKind state) const {
    return static_cast<uint32_t>(std::ranges::count(states, state));
  }
  uint32_t num_readers() const {
    uint32_t sum = 0;
    for (const uint32_t one : readers) sum += one;
    return sum;
  }
};

// A table and its twin, which counts all anew each time.
class SegmentTableModel : public SegmentTableTest {
 protected:
  bool IsFreeToTake(const TwinSegment& segment, uint32_t slot) const {
    return !segment.is_abandoned && segment.states[slot] == SlotKind::kFree &&
           segment.readers[slot] == 0;
  }
  bool HasSlotToTake() const {
    for (const auto& [index, segment] : twin_) {
      for (uint32_t slot = 0; slot < segment.states.size(); ++slot) {
        if (IsFreeToTake(segment, slot)) return true;
      }
    }
    return false;
  }
  // Returns whether so many slots side by side belong to no segment.
  bool HasPlaceFor(uint32_t slots) const {
    for (uint32_t first = 0; first + slots <= kMaxSlots; ++first) {
      const bool overlaps = std::ranges::any_of(twin_, [&](const auto& one) {
        const SegmentTable::Segment& other = table_->at(one.first);
        return first < other.first + other.shape.slots && other.first < first + slots;
      });
      if (!overlaps) return true;
    }
    return false;
  }
  void Add() {
    const uint32_t slots = random_.Below(2) == 0 ? 16 : 24;
    const bool has_place = HasPlaceFor(slots);
    const auto added = table_->Add(HeadOf(++number_, slots));
    ASSERT_EQ(added.has_value(), has_place);
    if (!added) return;
    ASSERT_FALSE(twin_.contains(*added));
    EXPECT_EQ(table_->at(*added).number, number_);
    EXPECT_EQ(table_->at(*added).generation, 1000 + number_);
    EXPECT_LE(table_->at(*added).first + slots, kMaxSlots);
    twin_[*added] = {.states = std::vector(slots, SlotKind::kFree),
                     .readers = std::vector<uint32_t>(slots)};
  }
  void Take() {
    const bool has_slot = HasSlotToTake();
    const auto taken = table_->TakeSlot();
    ASSERT_EQ(taken.has_value(), has_slot);
    if (!taken) return;
    TwinSegment& segment = twin_.at(taken->segment);
    ASSERT_TRUE(IsFreeToTake(segment, taken->slot));
    segment.states[taken->slot] = SlotKind::kTaken;
  }
  void ChangeSome() {
    if (twin_.empty()) return;
    auto found = twin_.begin();
    std::advance(found, random_.Below(twin_.size()));
    auto& [index, segment] = *found;
    const SlotRef slot{index, static_cast<uint32_t>(random_.Below(segment.states.size()))};
    SlotKind& state = segment.states[slot.slot];
    uint32_t& readers = segment.readers[slot.slot];
    switch (random_.Below(8)) {
      case 0:
        ASSERT_EQ(table_->TakeThis(slot), state == SlotKind::kFree);
        if (state == SlotKind::kFree) state = SlotKind::kTaken;
        break;
      case 1:
      case 2:
        if (state == SlotKind::kFree) break;
        table_->FreeSlot(slot);
        state = SlotKind::kFree;
        break;
      case 3:
        table_->Condemn(slot);
        state = SlotKind::kCondemned;
        break;
      case 4:
        if (state != SlotKind::kFree) break;
        table_->SetUnread(slot);
        state = SlotKind::kUnread;
        break;
      case 5:
        if (random_.Below(4) > 0) break;
        table_->AddReader(slot);
        ++readers;
        break;
      case 6:
        if (readers == 0) break;
        table_->EndReader(slot);
        --readers;
        break;
      default:
        if (random_.Below(20) == 0) {
          table_->Abandon(index);
          segment.is_abandoned = true;
        } else if (random_.Below(4) == 0) {
          Empty(index, segment);
          table_->Remove(index);
          twin_.erase(found);
          ++num_removed_;
        }
    }
  }
  // Lets go of all slots that would keep the segment.
  void Empty(uint32_t index, const TwinSegment& segment) {
    for (uint32_t i = 0; i < segment.states.size(); ++i) {
      for (uint32_t k = 0; k < segment.readers[i]; ++k) table_->EndReader({index, i});
      if (segment.states[i] == SlotKind::kTaken) table_->FreeSlot({index, i});
    }
  }
  void ExpectSame() const {
    ASSERT_EQ(table_->num_open(), twin_.size());
    uint32_t num_free = 0;
    for (uint32_t index = 0; index < table_->max_segments(); ++index) {
      ASSERT_EQ(table_->at(index).is_open, twin_.contains(index)) << index;
    }
    for (const auto& [index, segment] : twin_) {
      const SegmentTable::Segment& one = table_->at(index);
      ASSERT_EQ(one.is_abandoned, segment.is_abandoned);
      ASSERT_EQ(one.num_free, segment.Count(SlotKind::kFree));
      ASSERT_EQ(one.num_taken, segment.Count(SlotKind::kTaken));
      ASSERT_EQ(one.num_unread, segment.Count(SlotKind::kUnread));
      ASSERT_EQ(one.readers, segment.num_readers());
      if (!segment.is_abandoned) num_free += one.num_free;
      for (uint32_t slot = 0; slot < segment.states.size(); ++slot) {
        ASSERT_EQ(table_->state({index, slot}), segment.states[slot]) << index << " " << slot;
      }
    }
    ASSERT_EQ(table_->num_free(), num_free);
  }

  Random random_{77};
  uint32_t number_ = 0, num_removed_ = 0;
  std::map<uint32_t, TwinSegment> twin_;
};

TEST_F(SegmentTableModel, RandomOperationsCountWhatATwinCounts) {
  for (int step = 0; step < Rounds(20'000, 2'000); ++step) {
    const uint64_t draw = random_.Below(16);
    if (draw == 0) {
      Add();
    } else if (draw < 6) {
      Take();
    } else {
      ChangeSome();
    }
    ExpectSame();
    if (HasFatalFailure()) break;
  }
  EXPECT_GT(num_removed_, 10u);
}

TEST_F(SegmentTableTest, SlotsAreTakenSideBySideAndTurnByTurn) {
  const uint32_t first = *table_->Add(HeadOf(1, 16)), second = *table_->Add(HeadOf(2, 16));
  std::vector<SlotRef> taken;
  for (int i = 0; i < 16; ++i) taken.push_back(*table_->TakeSlot());
  for (uint32_t i = 0; i < 16; ++i) EXPECT_EQ(taken[i], (SlotRef{first, i}));
  EXPECT_EQ(*table_->TakeSlot(), (SlotRef{second, 0})) << "the first one is full";
  table_->FreeSlot(taken[3]);
  EXPECT_EQ(*table_->TakeSlot(), (SlotRef{second, 1})) << "it goes on where it was";
  table_->Abandon(second);
  EXPECT_EQ(*table_->TakeSlot(), taken[3]) << "nothing is written to the other any more";
  EXPECT_EQ(table_->TakeSlot(), std::nullopt);
  table_->Clear();
  EXPECT_EQ(table_->num_open(), 0u);
  EXPECT_EQ(table_->num_free(), 0u);
}

TEST_F(SegmentTableTest, ASlotRemembersWhoseBytesItMayHold) {
  ASSERT_TRUE(table_->Add(HeadOf(1, 16)));
  const SlotRef slot = *table_->TakeSlot();
  EXPECT_FALSE(table_->owner(slot) || table_->entry(slot) || table_->is_zero(slot));
  table_->set_owner(slot, OwnerId{7});
  table_->SetEntry(slot, EntryId{9});
  EXPECT_EQ(table_->entry(slot), EntryId{9});
  table_->FreeSlot(slot);
  EXPECT_EQ(table_->owner(slot), OwnerId{7}) << "an erase finds it, also when it is free";
  EXPECT_FALSE(table_->entry(slot));
  table_->SetZero(slot);
  EXPECT_FALSE(table_->owner(slot));
  EXPECT_TRUE(table_->is_zero(slot));
  ASSERT_TRUE(table_->TakeThis(slot));
  EXPECT_FALSE(table_->is_zero(slot)) << "a record may be written there";
  table_->SetEntry(slot, EntryId{9});
  table_->Condemn(slot);
  EXPECT_FALSE(table_->entry(slot));
}

}  // namespace
}  // namespace kvasir
