#include "tier/record_index.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/random.h"

namespace kvasir {
namespace {

uint32_t EntriesFor(uint32_t max_records) { return max_records + max_records / 64 + 64; }

}  // namespace

RecordIndex::RecordIndex(Arena& arena, uint32_t max_records)
    : max_records_(max_records),
      max_entries_(EntriesFor(max_records)),
      table_size_(std::bit_ceil(max_entries_ * 2)),
      records_(arena.TakeArray<Record>(max_entries_)),
      table_(arena.TakeArray<uint32_t>(table_size_)),
      heap_(arena.TakeArray<uint32_t>(max_entries_)) {
  if (records_ != nullptr) Clear();
}

void RecordIndex::Clear() {
  std::memset(table_, 0xFF, table_size_ * sizeof(uint32_t));
  heap_size_ = num_stored_ = num_writing_ = 0;
  free_ = kNoEntry;
  for (uint32_t i = max_entries_; i-- > 0;) {
    records_[i] = {};
    records_[i].after = free_;
    free_ = i;
  }
}

uint32_t RecordIndex::Home(const RecordName& name) const {
  uint64_t start;
  std::memcpy(&start, name.key.data(), sizeof(start));
  return static_cast<uint32_t>(Mix64(start ^ uint64_t{name.layer_group} << 16 ^ name.part)) &
         (table_size_ - 1);
}

uint32_t RecordIndex::PlaceOf(const RecordName& name) const {
  uint32_t place = Home(name);
  while (table_[place] != kNoEntry && records_[table_[place]].name != name) {
    place = (place + 1) & (table_size_ - 1);
  }
  return place;
}

std::optional<EntryId> RecordIndex::Find(const RecordName& name) const {
  const uint32_t entry = table_[PlaceOf(name)];
  if (entry == kNoEntry || records_[entry].state == State::kMissing) return std::nullopt;
  return EntryId{entry};
}

uint32_t RecordIndex::NewEntry(const RecordName& name) {
  const uint32_t entry = free_;
  if (entry == kNoEntry) return kNoEntry;
  free_ = records_[entry].after;
  records_[entry] = {
      .name = name, .after = kNoEntry, .heap_at = kNoEntry, .state = State::kMissing};
  table_[PlaceOf(name)] = entry;
  return entry;
}

void RecordIndex::FreeEntry(uint32_t entry) {
  uint32_t hole = PlaceOf(records_[entry].name);
  KV_CHECK(table_[hole] == entry);
  table_[hole] = kNoEntry;
  // Moves entries after the hole into it, if they would not be found any more.
  for (uint32_t place = (hole + 1) & (table_size_ - 1); table_[place] != kNoEntry;
       place = (place + 1) & (table_size_ - 1)) {
    const uint32_t home = Home(records_[table_[place]].name);
    const uint32_t mask = table_size_ - 1;
    if (((place - home) & mask) < ((place - hole) & mask)) continue;
    table_[hole] = table_[place];
    table_[place] = kNoEntry;
    hole = place;
  }
  records_[entry] = {};
  records_[entry].after = free_;
  free_ = entry;
}

void RecordIndex::Depend(uint32_t entry, uint32_t after) {
  records_[entry].after = after;
  if (after == kNoEntry) return;
  ++records_[after].dependents;
  UpdateHeap(after);
}

void RecordIndex::EndDependence(uint32_t entry) {
  const uint32_t after = records_[entry].after;
  records_[entry].after = kNoEntry;
  if (after == kNoEntry) return;
  --records_[after].dependents;
  UpdateHeap(after);
  if (records_[after].dependents == 0 && records_[after].state == State::kMissing) FreeEntry(after);
}

std::optional<EntryId> RecordIndex::Add(const RecordName& name, OwnerId owner,
                                        const std::optional<RecordName>& after, uint64_t order) {
  if (num_stored_ + num_writing_ >= max_records_) return std::nullopt;
  uint32_t entry = table_[PlaceOf(name)];
  const bool was_missing = entry != kNoEntry;
  if (!was_missing) entry = NewEntry(name);
  if (entry == kNoEntry) return std::nullopt;
  KV_CHECK(records_[entry].state == State::kMissing);
  uint32_t on = kNoEntry;
  if (after && *after != name) {
    on = table_[PlaceOf(*after)];
    if (on == kNoEntry) on = NewEntry(*after);
    if (on == kNoEntry) {
      if (!was_missing) FreeEntry(entry);
      return std::nullopt;
    }
  }
  Record& record = records_[entry];
  record.owner = owner;
  record.order = order;
  record.state = State::kWriting;
  ++num_writing_;
  Depend(entry, on);
  return EntryId{entry};
}

void RecordIndex::SetStored(EntryId id, SlotRef slot) {
  KV_CHECK(record(id).state == State::kWriting);
  record(id).state = State::kStored;
  record(id).slot = slot;
  --num_writing_;
  ++num_stored_;
  UpdateHeap(static_cast<uint32_t>(id));
}

void RecordIndex::Move(EntryId id, SlotRef slot) {
  KV_CHECK(record(id).state == State::kStored);
  record(id).slot = slot;
}

void RecordIndex::Touch(EntryId id, uint64_t order) {
  Record& touched = record(id);
  touched.order = order;
  if (touched.heap_at != kNoEntry) HeapDown(touched.heap_at);
}

void RecordIndex::AddReader(EntryId id) {
  ++record(id).readers;
  UpdateHeap(static_cast<uint32_t>(id));
}
void RecordIndex::EndReader(EntryId id) {
  KV_CHECK(record(id).readers > 0);
  --record(id).readers;
  UpdateHeap(static_cast<uint32_t>(id));
}

void RecordIndex::Remove(EntryId id) {
  const auto entry = static_cast<uint32_t>(id);
  Record& gone = records_[entry];
  KV_CHECK(gone.state == State::kStored || gone.state == State::kWriting);
  --(gone.state == State::kStored ? num_stored_ : num_writing_);
  gone.state = State::kMissing;
  gone.readers = 0;
  UpdateHeap(entry);
  EndDependence(entry);
  if (gone.dependents == 0) FreeEntry(entry);
}

bool RecordIndex::IsAnchored(EntryId id) const {
  const uint32_t after = at(id).after;
  return after == kNoEntry || records_[after].state == State::kStored;
}

std::optional<EntryId> RecordIndex::Coldest() const {
  if (heap_size_ == 0) return std::nullopt;
  return EntryId{heap_[0]};
}

void RecordIndex::UpdateHeap(uint32_t entry) {
  const Record& one = records_[entry];
  const bool belongs = one.state == State::kStored && one.dependents == 0 && one.readers == 0;
  if (belongs && one.heap_at == kNoEntry) HeapAdd(entry);
  if (!belongs && one.heap_at != kNoEntry) HeapRemove(entry);
}

void RecordIndex::HeapPut(uint32_t at, uint32_t entry) {
  heap_[at] = entry;
  records_[entry].heap_at = at;
}

void RecordIndex::HeapUp(uint32_t at) {
  const uint32_t entry = heap_[at];
  while (at > 0) {
    const uint32_t parent = (at - 1) / 2;
    if (records_[heap_[parent]].order <= records_[entry].order) break;
    HeapPut(at, heap_[parent]);
    at = parent;
  }
  HeapPut(at, entry);
}

void RecordIndex::HeapDown(uint32_t at) {
  const uint32_t entry = heap_[at];
  for (;;) {
    uint32_t child = 2 * at + 1;
    if (child >= heap_size_) break;
    if (child + 1 < heap_size_ && records_[heap_[child + 1]].order < records_[heap_[child]].order) {
      ++child;
    }
    if (records_[entry].order <= records_[heap_[child]].order) break;
    HeapPut(at, heap_[child]);
    at = child;
  }
  HeapPut(at, entry);
}

void RecordIndex::HeapAdd(uint32_t entry) {
  HeapPut(heap_size_, entry);
  HeapUp(heap_size_++);
}

void RecordIndex::HeapRemove(uint32_t entry) {
  const uint32_t at = records_[entry].heap_at;
  records_[entry].heap_at = kNoEntry;
  const uint32_t last = heap_[--heap_size_];
  if (last == entry) return;
  HeapPut(at, last);
  HeapUp(at);
  HeapDown(records_[last].heap_at);
}

bool RecordIndex::CheckInvariants() const {
  uint32_t stored = 0, writing = 0, in_heap = 0, depends = 0, dependents = 0;
  for (uint32_t i = 0; i < max_entries_; ++i) {
    const Record& one = records_[i];
    if (one.state == State::kFree) continue;
    if (table_[PlaceOf(one.name)] != i) return false;
    stored += one.state == State::kStored;
    writing += one.state == State::kWriting;
    if (one.state == State::kMissing && one.dependents == 0) return false;
    const bool evictable = one.state == State::kStored && one.dependents == 0 && one.readers == 0;
    if (evictable != (one.heap_at != kNoEntry)) return false;
    in_heap += evictable;
    if (evictable && heap_[one.heap_at] != i) return false;
    depends += one.after != kNoEntry;
    dependents += one.dependents;
  }
  for (uint32_t i = 1; i < heap_size_; ++i) {
    if (records_[heap_[(i - 1) / 2]].order > records_[heap_[i]].order) return false;
  }
  return stored == num_stored_ && writing == num_writing_ && in_heap == heap_size_ &&
         depends == dependents;
}

}  // namespace kvasir
