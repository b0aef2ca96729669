// RecordIndex: which records the tier has, where they lie, and which of them leaves first.
#pragma once

#include <cstdint>
#include <optional>

#include "base/arena.h"
#include "tier/owner_keys.h"
#include "tier/tier.h"

namespace kvasir {

// A record's place in the index; of no record any more after Remove.
enum class EntryId : uint32_t {};

// Where a record lies: a segment of the store's table, and the slot in it.
struct SlotRef {
  uint32_t segment = 0, slot = 0;
  bool operator==(const SlotRef&) const = default;
};

// A record depends on the one that its facts name as `after`, which leaves later. Where that one
// goes all the same (damaged), its entry stays as *missing* while others depend on it, and is taken
// again when it is written again. Records that are stored, on which nothing depends and which
// are not being read may be evicted: they lie in a heap, the coldest on top.
//
// States: writing -> stored, by SetStored; all -> missing or no entry, by Remove.
//
// All memory is taken at construction. Find is O(1); what changes the heap O(log n).
// Thread-compatible.
class RecordIndex {
 public:
  enum class State : uint8_t { kFree, kMissing, kWriting, kStored };
  struct Record {
    RecordName name;
    uint64_t order = 0;  // of last use: hour << 32 | a number that rises
    SlotRef slot;
    uint32_t after = 0;  // an entry, or kNoEntry
    uint32_t dependents = 0;
    uint32_t heap_at = 0;  // or kNoEntry
    uint32_t readers = 0;
    OwnerId owner{};
    State state = State::kFree;
    uint8_t mark = 0;  // of MarkLeaving
  };
  static constexpr uint32_t kNoEntry = ~uint32_t{0};

  // Takes its memory from the arena; one that only counts plans it. Beyond `max_records` there is
  // room for some entries of missing ones.
  RecordIndex(Arena& arena, uint32_t max_records);
  void Clear();

  std::optional<EntryId> Find(const RecordName& name) const;
  const Record& at(EntryId id) const { return records_[static_cast<uint32_t>(id)]; }
  // Adds a record, in the state writing. Where the one that it depends on is not known, that
  // becomes missing. Absent: the index is full. REQUIRES: the name is not known, or missing.
  std::optional<EntryId> Add(const RecordName& name, OwnerId owner,
                             const std::optional<RecordName>& after, uint64_t order);
  void SetStored(EntryId id, SlotRef slot);
  void Move(EntryId id, SlotRef slot);  // REQUIRES: stored
  void Touch(EntryId id, uint64_t order);
  void AddReader(EntryId id);
  void EndReader(EntryId id);
  void Remove(EntryId id);
  // Returns whether this stored record may be used: the one that it depends on is stored, or
  // absent.
  bool IsAnchored(EntryId id) const;

  // Marks those for which `leaves(*this, id)` is true and all that depend on them, over any number
  // of links. Later changes of the index do not move the marks. O(n).
  template <typename Leaves>
  void MarkLeaving(Leaves&& leaves) {
    for (uint32_t i = 0; i < max_entries_; ++i) records_[i].mark = kUnmarked;
    for (uint32_t i = 0; i < max_entries_; ++i) {
      // Up to the first one whose mark is known; then the same way again.
      uint32_t at = i, steps = 0;
      uint8_t mark = kStays;
      for (; IsHere(at) && ++steps <= max_entries_; at = records_[at].after) {
        if (records_[at].mark == kUnmarked && leaves(*this, EntryId{at}))
          records_[at].mark = kLeaves;
        if (records_[at].mark != kUnmarked) {
          mark = records_[at].mark;
          break;
        }
      }
      if (steps > max_entries_) mark = kLeaves;  // a ring, which a damaged file may show
      for (at = i; IsHere(at) && records_[at].mark == kUnmarked; at = records_[at].after) {
        records_[at].mark = mark;
      }
    }
  }
  bool IsLeaving(EntryId id) const {
    return IsHere(static_cast<uint32_t>(id)) && at(id).mark == kLeaves;
  }

  // Returns the record that leaves first.
  std::optional<EntryId> Coldest() const;

  uint32_t num_stored() const { return num_stored_; }
  uint32_t num_writing() const { return num_writing_; }
  bool is_full() const { return num_stored_ + num_writing_ >= max_records_ || free_ == kNoEntry; }
  // Returns the number of entries to walk over; those that are free have no record.
  uint32_t num_entries() const { return max_entries_; }
  const Record& entry(uint32_t index) const { return records_[index]; }

  // Returns whether all links agree; for tests. O(n).
  bool CheckInvariants() const;

 private:
  static constexpr uint8_t kUnmarked = 0, kStays = 1, kLeaves = 2;
  bool IsHere(uint32_t entry) const {
    return entry != kNoEntry &&
           (records_[entry].state == State::kStored || records_[entry].state == State::kWriting);
  }
  Record& record(EntryId id) { return records_[static_cast<uint32_t>(id)]; }
  uint32_t Home(const RecordName& name) const;
  uint32_t PlaceOf(const RecordName& name) const;  // where it is in the table, or would be
  uint32_t NewEntry(const RecordName& name);       // or kNoEntry
  void FreeEntry(uint32_t entry);
  void Depend(uint32_t entry, uint32_t after);
  void EndDependence(uint32_t entry);
  void UpdateHeap(uint32_t entry);
  void HeapAdd(uint32_t entry);
  void HeapRemove(uint32_t entry);
  void HeapPut(uint32_t at, uint32_t entry);
  void HeapUp(uint32_t at);
  void HeapDown(uint32_t at);

  const uint32_t max_records_, max_entries_, table_size_;
  Record* records_;
  uint32_t* table_;  // entries by name; open addressing
  uint32_t* heap_;   // entries
  uint32_t heap_size_ = 0;
  uint32_t free_ = kNoEntry;  // a list, by `after`
  uint32_t num_stored_ = 0, num_writing_ = 0;
};

}  // namespace kvasir
