// DiskTier: room. The cap of the folder, free space, time to live, and what leaves for them.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/hex.h"
#include "base/log.h"
#include "tier/disk_tier.h"
#include "tier/spare_file.h"

namespace kvasir {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000, kSpaceNs = 10 * kSecondNs;
constexpr uint64_t kMaxReserveBytes = uint64_t{2} << 30;

}  // namespace

std::optional<uint64_t> DiskTier::MissingRoom(uint64_t bytes) {
  const IoResult<TreeFacts> tree =
      store_.storage.TreeBytes(store_.writing_files->root.id(), kSegmentPrefix);
  if (!tree) {
    store_.CountError(&TierStats::fault_read, tree.error());
    return std::nullopt;
  }
  MutexLock lock(store_.mutex);
  const bool is_segment = bytes == store_.options.new_segment_bytes();
  const uint64_t whole = tree->whole_bytes + (is_segment ? bytes : 0);
  const uint64_t other = tree->other_bytes + (is_segment ? 0 : bytes) + kTierDraftBytes;
  const uint64_t needed = whole + std::max(other, Store::kBesideBytes + reserved_bytes_);
  return needed - std::min(needed, store_.state.cap_bytes);
}

// Whether the folder may take `bytes` more.
std::optional<bool> DiskTier::HasRoomFor(uint64_t bytes) {
  const std::optional<uint64_t> missing = MissingRoom(bytes);
  return missing ? std::optional(*missing == 0) : std::nullopt;
}

std::optional<uint64_t> DiskTier::MissingSpace(uint64_t bytes) {
  const IoResult<SpaceFacts> space = store_.storage.Space(store_.writing_files->root.id());
  if (!space) {
    store_.CountError(&TierStats::fault_read, space.error());
    return std::nullopt;
  }
  const uint64_t needed = bytes + store_.options.reserve_bytes.value_or(
                                      std::min(space->total_bytes / 10, kMaxReserveBytes));
  return needed - std::min(needed, space->free_bytes);
}

// Whether the disk stays usable for others when `bytes` more are taken.
std::optional<bool> DiskTier::HasFreeSpace(uint64_t bytes) {
  const std::optional<uint64_t> missing = MissingSpace(bytes);
  return missing ? std::optional(*missing == 0) : std::nullopt;
}

// Warns once when the tier has no segment and the device has no room for one.
void DiskTier::NoteRoom() {
  uint64_t bytes;
  bool has_segments = false;
  {
    MutexLock lock(store_.mutex);
    bytes = store_.options.new_segment_bytes();
    for (uint32_t i = 0; i < store_.segments.max_segments(); ++i) {
      const SegmentTable::Segment& segment = store_.segments.at(i);
      has_segments |= segment.is_open && !segment.is_abandoned;
    }
  }
  uint64_t missing = 0;
  std::string why;
  if (!has_segments) {
    missing = MissingSpace(bytes).value_or(0);
    if (missing > 0) {
      why = fmt::format(
          "the device lacks {} bytes for a segment beside what stays free (--disk-reserve)",
          missing);
    } else if (store_.storage.MonotonicNs() < no_growth_until_ns_) {  // nothing more could leave
      missing = MissingRoom(bytes).value_or(0);
      if (missing > 0) {
        why =
            fmt::format("other files of the folder leave {} bytes too few under its cap", missing);
      }
    }
  }
  {
    MutexLock lock(store_.mutex);
    std::swap(why, store_.state.full_reason);
    store_.state.missing_bytes = missing;
    if (store_.state.full_reason.empty() || !why.empty()) return;
    why = store_.state.full_reason;
  }
  Log(LogLevel::kWarning, "disk tier: nothing is stored until there is room",
      LogField("folder", store_.options.folder), LogField("reason", why));
}

// One segment more, where cap and disk allow it. All servers of the folder do this under its lock,
// so the cap holds at every instant.
DiskTier::GrowEnd DiskTier::Grow() {
  uint64_t bytes;
  {
    MutexLock lock(store_.mutex);
    bytes = store_.options.new_segment_bytes();
  }
  const auto ends = [&](GrowEnd end) {
    if (end != GrowEnd::kGrown) no_growth_until_ns_ = store_.storage.MonotonicNs() + kSpaceNs;
    NoteRoom();
    return end;
  };
  const IoResult<OpenedFile> locked =
      LockTierFolder(store_.storage, store_.writing_files->root.id());
  if (!locked && locked.error() == EWOULDBLOCK) {
    if (busy_since_ns_ == 0) busy_since_ns_ = store_.storage.MonotonicNs();
    const bool is_brief = store_.storage.MonotonicNs() < busy_since_ns_ + kSecondNs;
    return is_brief ? GrowEnd::kBusy : GrowEnd::kFull;
  }
  busy_since_ns_ = 0;
  if (!locked) {
    store_.CountError(&TierStats::fault_write, locked.error());
    return ends(GrowEnd::kFailed);
  }
  if (!HasFreeSpace(bytes).value_or(false)) return ends(GrowEnd::kFull);
  if (FaultActive(Fault::kCapAfterGrowth)) {
    const bool made = MakeSegment();
    return ends(made && HasRoomFor(0).value_or(false) ? GrowEnd::kGrown : GrowEnd::kFull);
  }
  for (;;) {
    const std::optional<bool> fits = HasRoomFor(bytes);
    if (!fits) return ends(GrowEnd::kFailed);
    if (*fits) break;
    if (!RemoveUnusable() && !RemoveForeignSegment()) return ends(GrowEnd::kFull);
  }
  return ends(MakeSegment() ? GrowEnd::kGrown : GrowEnd::kFailed);
}

// A file of ours whose segment cannot be read: damaged, of another version or of another shape. Or
// one in which the records that no key opens outnumber the others.
bool DiskTier::RemoveUnusable() {
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
  return unread && RemoveSegment(*unread, EvictCause::kCap).has_value();
}

// The segment that was written longest ago, of those of stores that nobody has locked, where it is
// older than our coldest record.
bool DiskTier::RemoveForeignSegment() {
  int64_t oldest = INT64_MAX;
  {
    MutexLock lock(store_.mutex);
    if (const auto coldest = store_.records.Coldest()) {
      oldest = static_cast<int64_t>(store_.records.at(*coldest).order >> 32) * 3600;
    }
  }
  const FileId root = store_.writing_files->root.id();
  const IoResult<std::vector<std::string>> names = store_.storage.List(root);
  if (!names) return false;
  const std::string ours = ToHex(store_.id);
  std::string store, segment;
  for (const std::string& name : *names) {
    if (!ParseStoreName(name) || name == ours) continue;
    const IoResult<bool> locked = IsStoreLocked(store_.storage, root, name);
    if (!locked || *locked) continue;
    const IoResult<OpenedFile> folder = Own(store_.storage, store_.storage.OpenFolder(root, name));
    if (!folder) continue;
    const IoResult<std::vector<std::string>> files = store_.storage.List(folder->id());
    for (const std::string& file : files ? *files : std::vector<std::string>()) {
      if (!ParseSegmentFileName(file)) continue;
      const IoResult<FileFacts> facts = store_.storage.FactsOf(folder->id(), file);
      if (!facts || facts->changed_unix_s >= oldest) continue;
      oldest = facts->changed_unix_s;
      store = name;
      segment = file;
    }
  }
  if (segment.empty()) return false;
  const IoResult<OpenedFile> folder = Own(store_.storage, store_.storage.OpenFolder(root, store));
  if (!folder) return false;
  const IoResult<OpenedFile> lock =
      Own(store_.storage, store_.storage.OpenFile(folder->id(), "lock", OpenMode::kWriteOrNew));
  if (!lock) return false;
  const IoResult<bool> locked = store_.storage.TryLock(lock->id());
  return locked && *locked && store_.storage.Unlink(folder->id(), segment).has_value();
}

// REQUIRES: the folder's lock.
bool DiskTier::MakeSegment() {
  SegmentHead head{.store = store_.id, .segment = next_segment_};
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
  const std::string name = SegmentFileName(next_segment_);
  if (next_segment_ < UINT32_MAX) ++next_segment_;
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
  if (made.error() != ENOSPC && made.error() != EDQUOT) {
    store_.CountError(&TierStats::fault_write, made.error());
  }
  MutexLock lock(store_.mutex);
  store_.segments.Remove(*added);
  return false;
}

// Gives the segment back whose most recently used record is the coldest. False: there is none.
bool DiskTier::ReleaseSegment(EvictCause cause) {
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
  return coldest && RemoveSegment(*coldest, cause).has_value();
}

// Removes the segment's file, and all records that lie in it or depend on one of those. REQUIRES:
// no group is being written. EBUSY: somebody reads from the segment.
IoStatus DiskTier::RemoveSegment(uint32_t index, EvictCause cause) {
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

// Abandoned segments whose last record has left.
void DiskTier::RemoveAbandoned() {
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
    (void)RemoveSegment(i, EvictCause::kCap);
  }
}

void DiskTier::Reserve(uint64_t bytes) {
  MutexLock lock(store_.mutex);
  const uint64_t reserved = bytes - std::min(bytes, Store::kSessionBytes);
  must_fit_ |= reserved > reserved_bytes_;
  reserved_bytes_ = reserved;
}

void DiskTier::KeepRoomToErase(FileId root) {
  uint64_t bytes, cap;
  {
    MutexLock lock(store_.mutex);
    bytes = kSpareBytes + RoundUp(ForgetIntentBytes(Store::MaxRecords(store_.options),
                                                    store_.segments.max_segments()),
                                  kTierPageBytes);
    cap = store_.state.cap_bytes;
  }
  if (SpareOf(store_.storage, root, kSpareName) >= bytes) return;
  const IoResult<OpenedFile> locked = LockTierFolder(store_.storage, root);
  if (!locked) return;  // the next pass keeps it
  KeepSpare(store_.storage, root, kSpareName, bytes, cap);
}

// A smaller cap than before: gives back what is too much, before anything is stored.
void DiskTier::FitCap() {
  while (!HasRoomFor(0).value_or(true)) {
    if (!RemoveUnusable() && !RemoveForeignSegment() && !ReleaseSegment(EvictCause::kCap)) return;
  }
}

// Of this folder: those that a running process has locked, this one among them.
uint32_t DiskTier::NumActiveStores() {
  const FileId root = store_.writing_files->root.id();
  const IoResult<std::vector<std::string>> names = store_.storage.List(root);
  uint32_t active = 1;
  const std::string ours = ToHex(store_.id);
  for (const std::string& name : names ? *names : std::vector<std::string>()) {
    if (!ParseStoreName(name) || name == ours) continue;
    const IoResult<bool> locked = IsStoreLocked(store_.storage, root, name);
    active += locked && *locked ? 1 : 0;
  }
  return active;
}

// Segments go back while the disk is nearly full, and, one at a time, while several servers share a
// full folder and this one has more than its equal part.
void DiskTier::GiveBack() {
  while (!HasFreeSpace(0).value_or(true)) {
    if (!RemoveUnusable() && !ReleaseSegment(EvictCause::kSpace)) return;
  }
  uint64_t ours, bytes, cap;
  {
    MutexLock lock(store_.mutex);
    bytes = store_.options.new_segment_bytes();
    ours = store_.segments.num_open() * bytes;
    cap = store_.state.cap_bytes;
  }
  const uint32_t active = NumActiveStores();
  if (active < 2 || ours <= (cap - Store::kBesideBytes) / active + bytes) return;
  if (HasRoomFor(bytes).value_or(true)) return;
  (void)ReleaseSegment(EvictCause::kCap);
}

void DiskTier::ExpireOld() {
  MutexLock lock(store_.mutex);
  const uint32_t now = store_.clock.NowHour();
  while (const auto coldest = store_.records.Coldest()) {
    const auto hour = static_cast<uint32_t>(store_.records.at(*coldest).order >> 32);
    if (hour + store_.options.ttl_hours >= now) return;
    (void)store_.Evict(EvictCause::kTtl);
  }
}

// What is due by time.
bool DiskTier::Maintain() {
  const uint64_t now_ns = store_.storage.MonotonicNs();
  if (now_ns < second_ns_) return false;
  second_ns_ = now_ns + kSecondNs;
  reader_.NoteStalls();
  uint32_t hour;
  bool must_fit;
  {
    MutexLock lock(store_.mutex);
    must_fit = std::exchange(must_fit_, false);
    hour = store_.clock.NowHour();
    const uint64_t day = hour / 24;
    if (day > store_.figures.written_day) {
      store_.figures.written_day = day;
      store_.figures.stats.written_today_bytes = 0;
    }
  }
  if (must_fit) FitCap();
  if (hour != maintained_hour_) {
    maintained_hour_ = hour;
    ExpireOld();
    WriteHours();
  }
  if (now_ns >= space_ns_) {
    space_ns_ = now_ns + kSpaceNs;
    if (LeaveIfGone()) return true;
    GiveBack();
    NoteRoom();
    KeepRoomToErase(store_.writing_files->root.id());
    RemoveAbandoned();
    (void)ZeroAllCondemned(AbandonedSegments::kLeft);
    WriteAbout();
  }
  return false;
}

}  // namespace kvasir
