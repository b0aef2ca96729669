#include "tier/store_room.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/hex.h"
#include "base/log.h"
#include "tier/erase_files.h"
#include "tier/forget_intent.h"
#include "tier/spare_file.h"

namespace kvasir {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000, kSpaceNs = 10 * kSecondNs;
constexpr uint64_t kMaxReserveBytes = uint64_t{2} << 30;

}  // namespace

void StoreRoom::Reserve(uint64_t bytes) {
  MutexLock lock(store_.mutex);
  const uint64_t reserved = bytes - std::min(bytes, Store::kSessionBytes);
  must_fit_ |= reserved > reserved_bytes_;
  reserved_bytes_ = reserved;
}

void StoreRoom::FitReserved() {
  bool must_fit;
  {
    MutexLock lock(store_.mutex);
    must_fit = std::exchange(must_fit_, false);
  }
  if (must_fit) FitCap();
}

std::optional<uint64_t> StoreRoom::MissingRoom(uint64_t bytes) {
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

std::optional<bool> StoreRoom::HasRoomFor(uint64_t bytes) {
  const std::optional<uint64_t> missing = MissingRoom(bytes);
  return missing ? std::optional(*missing == 0) : std::nullopt;
}

std::optional<uint64_t> StoreRoom::MissingSpace(uint64_t bytes) {
  const IoResult<SpaceFacts> space = store_.storage.Space(store_.writing_files->root.id());
  if (!space) {
    store_.CountError(&TierStats::fault_read, space.error());
    return std::nullopt;
  }
  const uint64_t needed = bytes + store_.options.reserve_bytes.value_or(
                                      std::min(space->total_bytes / 10, kMaxReserveBytes));
  return needed - std::min(needed, space->free_bytes);
}

// Returns whether the disk stays usable for others when `bytes` more are taken.
std::optional<bool> StoreRoom::HasFreeSpace(uint64_t bytes) {
  const std::optional<uint64_t> missing = MissingSpace(bytes);
  return missing ? std::optional(*missing == 0) : std::nullopt;
}

void StoreRoom::NoteRoom() {
  const uint64_t bytes = store_.options.new_segment_bytes();
  bool has_segments = false;
  {
    MutexLock lock(store_.mutex);
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
    } else if (segments_.refusal()) {
      missing = bytes;
      why = fmt::format("the system refuses a segment of {} bytes: {}", bytes,
                        std::strerror(*segments_.refusal()));
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

bool StoreRoom::MakeSlotsFree(uint32_t slots) {
  for (;;) {
    {
      MutexLock lock(store_.mutex);
      if (store_.segments.num_free() >= slots) return true;
    }
    if (store_.storage.MonotonicNs() >= no_growth_until_ns_) {
      const GrowEnd end = Grow();
      if (end == GrowEnd::kGrown) continue;
      if (end == GrowEnd::kBusy) return false;
    }
    MutexLock lock(store_.mutex);
    while (store_.segments.num_free() < slots && store_.Evict(EvictCause::kCap)) {
    }
    return true;
  }
}

bool StoreRoom::GiveSegment() {
  if (!segments_.RemoveColdest(EvictCause::kCap)) return false;
  no_growth_until_ns_ = store_.storage.MonotonicNs() + kSecondNs;  // it is for others
  return true;
}

// Makes one segment more, where cap and disk allow it. All servers of the folder do this under its
// lock, so the cap holds at every instant.
StoreRoom::GrowEnd StoreRoom::Grow() {
  const IoResult<OpenedFile> locked =
      LockTierFolder(store_.storage, store_.writing_files->root.id());
  if (!locked && locked.error() == EWOULDBLOCK) {
    if (busy_since_ns_ == 0) busy_since_ns_ = store_.storage.MonotonicNs();
    const bool is_brief = store_.storage.MonotonicNs() < busy_since_ns_ + kSecondNs;
    return is_brief ? GrowEnd::kBusy : GrowEnd::kFull;
  }
  busy_since_ns_ = 0;
  if (!locked) store_.CountError(&TierStats::fault_write, locked.error());
  const GrowEnd end = locked ? GrowLocked() : GrowEnd::kFailed;
  if (end != GrowEnd::kGrown) no_growth_until_ns_ = store_.storage.MonotonicNs() + kSpaceNs;
  NoteRoom();
  return end;
}

StoreRoom::GrowEnd StoreRoom::GrowLocked() {
  const uint64_t bytes = store_.options.new_segment_bytes();
  if (!HasFreeSpace(bytes).value_or(false)) return GrowEnd::kFull;
  if (FaultActive(Fault::kCapAfterGrowth)) {
    const bool made = segments_.Make();
    return made && HasRoomFor(0).value_or(false) ? GrowEnd::kGrown : GrowEnd::kFull;
  }
  for (;;) {
    const std::optional<bool> fits = HasRoomFor(bytes);
    if (!fits) return GrowEnd::kFailed;
    if (*fits) break;
    if (!segments_.RemoveUnusable() && !RemoveForeignSegment()) return GrowEnd::kFull;
  }
  return segments_.Make() ? GrowEnd::kGrown : GrowEnd::kFailed;
}

// Returns the names of the folder's other stores that are locked, or that are not.
std::vector<std::string> StoreRoom::OtherStores(bool are_locked) {
  const FileId root = store_.writing_files->root.id();
  IoResult<std::vector<std::string>> names = store_.storage.List(root);
  if (!names) return {};
  const std::string ours = ToHex(store_.id);
  std::erase_if(*names, [&](const std::string& name) {
    if (!ParseStoreName(name) || name == ours) return true;
    const IoResult<bool> locked = IsStoreLocked(store_.storage, root, name);
    return !locked || *locked != are_locked;
  });
  return std::move(*names);
}

// Removes the segment that was written longest ago, of the stores that no process has locked, if
// it is older than our coldest record.
bool StoreRoom::RemoveForeignSegment() {
  int64_t oldest = INT64_MAX;
  {
    MutexLock lock(store_.mutex);
    if (const auto coldest = store_.records.Coldest()) {
      oldest = static_cast<int64_t>(store_.records.at(*coldest).order >> 32) * 3600;
    }
  }
  const FileId root = store_.writing_files->root.id();
  std::string store, segment;
  for (const std::string& name : OtherStores(false)) {
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

void StoreRoom::KeepRoomToErase(FileId root) {
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

void StoreRoom::FitCap() {
  while (!HasRoomFor(0).value_or(true)) {
    const bool has_given = segments_.RemoveUnusable() || RemoveForeignSegment() ||
                           segments_.RemoveColdest(EvictCause::kCap);
    if (!has_given) return;
  }
}

void StoreRoom::GiveBack() {
  while (!HasFreeSpace(0).value_or(true)) {
    if (!segments_.RemoveUnusable() && !segments_.RemoveColdest(EvictCause::kSpace)) return;
  }
  const uint64_t bytes = store_.options.new_segment_bytes();
  uint64_t ours, cap;
  {
    MutexLock lock(store_.mutex);
    ours = store_.segments.num_open() * bytes;
    cap = store_.state.cap_bytes;
  }
  const uint64_t active = 1 + OtherStores(true).size();
  if (active < 2 || ours <= (cap - Store::kBesideBytes) / active + bytes) return;
  if (HasRoomFor(bytes).value_or(true)) return;
  (void)segments_.RemoveColdest(EvictCause::kCap);
}

void StoreRoom::ExpireOld() {
  MutexLock lock(store_.mutex);
  const uint32_t now = store_.clock.NowHour();
  while (const auto coldest = store_.records.Coldest()) {
    const auto hour = static_cast<uint32_t>(store_.records.at(*coldest).order >> 32);
    if (hour + store_.options.ttl_hours >= now) return;
    (void)store_.Evict(EvictCause::kTtl);
  }
}

}  // namespace kvasir
