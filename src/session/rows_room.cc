#include "session/rows_room.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/bytes.h"
#include "base/result.h"
#include "base/system_error.h"
#include "tier/erase_files.h"
#include "tier/spare_file.h"
#include "tier/store_files.h"

namespace kvasir {
namespace {

// The tier gives room back within a second after it hears of the need.
constexpr int kRoomTries = 60;
constexpr uint64_t kRoomPauseMs = 50;
constexpr uint64_t kNeedStep = uint64_t{1} << 20;

}  // namespace

Error NoRoomInRows(uint64_t max_bytes) {
  return {Code::kExhausted,
          fmt::format("sessions may take {} bytes of the disk, an eighth of --disk-cap, and there "
                      "is no room for this change: delete sessions, or make them shorter",
                      max_bytes)};
}

uint64_t RowsRoom::TakenBytes() const {
  uint64_t sum = 0;
  for (const char* suffix : {"", "-wal", "-journal"}) {
    const auto facts = storage_.FactsOf(root_, std::string(kRowsName) + suffix);
    if (facts) sum += std::max(facts->bytes, facts->blocks_bytes);
  }
  return sum;
}

Result<OpenedFile> RowsRoom::Take(uint64_t bytes, For what, const std::function<Status()>& scrub) {
  needed_bytes_ = bytes;
  if (TakenBytes() + bytes > max_bytes_) KV_TRY(scrub());
  const uint64_t now = TakenBytes();
  if (on_need_) on_need_(std::min(max_bytes_, RoundUp(now + bytes + edit_bytes(), kNeedStep)));
  if (what == For::kStoring && now + bytes > max_bytes_) {
    return tl::unexpected(NoRoomInRows(max_bytes_));
  }
  for (int tries = 1;; ++tries) {
    IoResult<OpenedFile> lock = LockTierFolder(storage_, root_);
    if (!lock && lock.error() != EWOULDBLOCK) {
      return FailErrno(lock.error(), "cannot lock {}", options_.folder);
    }
    if (lock && options_.blocks_give_way) return std::move(*lock);
    uint64_t used = 0;
    if (lock) {
      const auto tree = storage_.TreeBytes(root_, kSegmentPrefix);
      if (!tree) return FailErrno(tree.error(), "cannot count what {} takes", options_.folder);
      used = tree->whole_bytes + tree->other_bytes;
      if (used + bytes + kTierDraftBytes <= options_.cap_bytes) {
        return std::move(*lock);
      }
      // A full folder: the room that was kept, which the cap counts too.
      if (what == For::kErasing && (tries == kRoomTries || used >= options_.cap_bytes)) {
        (void)GiveSpare(storage_, root_, kRowsSpareName);
        return std::move(*lock);
      }
    }
    if (tries == kRoomTries) {
      if (!lock) {
        return Fail(Code::kUnavailable,
                    "another process has held the lock of {} for 3 s; try again soon",
                    options_.folder);
      }
      return Fail(what == For::kErasing ? Code::kUnavailable : Code::kExhausted,
                  "the disk folder may have {} bytes (--disk-cap), and this change needs up to {} "
                  "more than it has left; try again soon",
                  options_.cap_bytes, bytes);
    }
    lock = IoFailed(EWOULDBLOCK);  // others may give room back
    storage_.Pause(kRoomPauseMs);
  }
}

uint64_t RowsRoom::Keep() {
  const uint64_t bytes = edit_bytes();
  has_given_ = false;
  // Some more, so that an edit that is a little longer leaves enough.
  KeepSpare(storage_, root_, kRowsSpareName, RoundUp(bytes + kRowsSpareBytes / 4, kRowsPage),
            options_.cap_bytes);
  return bytes;
}

void RowsRoom::KeepAgain() {
  if (const IoResult<OpenedFile> lock = LockTierFolder(storage_, root_); lock) Keep();
}

bool RowsRoom::IsKept(uint64_t bytes) const {
  return SpareOf(storage_, root_, kRowsSpareName) >= bytes;
}

bool RowsRoom::GiveKept() {
  if (!IsDeviceFull() || !GiveSpare(storage_, root_, kRowsSpareName)) return false;
  has_given_ = true;
  return true;
}

bool RowsRoom::IsDeviceFull() const {
  const IoResult<SpaceFacts> space = storage_.Space(root_);
  return space && space->free_bytes < needed_bytes_;
}

tl::unexpected<Error> RowsRoom::NoRoomOnDevice() const {
  const Code code = is_open_ ? Code::kUnavailable : Code::kExhausted;
  const IoResult<SpaceFacts> space = storage_.Space(root_);
  // The device may keep them for others, or have no place for one more file.
  if (space && space->free_bytes >= needed_bytes_) {
    return Fail(code,
                "no room on the device that keeps sessions: it refused a write, of up to {} bytes",
                needed_bytes_);
  }
  return Fail(
      code, "no room on the device that keeps sessions: this needs up to {} bytes, and {} are free",
      needed_bytes_, space ? space->free_bytes : 0);
}

}  // namespace kvasir
