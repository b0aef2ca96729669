// RowsRoom: the room that the file of SealedRows and its log may take, and what is kept for erases.
#pragma once

#include <cstdint>
#include <functional>

#include "kvasir/status.h"
#include "session/sealed_rows_options.h"
#include "tier/storage.h"

namespace kvasir {

inline constexpr uint64_t kRowsPage = 4096;  // of the file
// What no row takes: pages of the tree, of free lists and of the log's head.
inline constexpr uint64_t kRowsSpareBytes = 64 * kRowsPage;
// Returns what a transaction adds to the log that writes or zeros so many bytes of rows.
constexpr uint64_t RowsLogBytes(uint64_t row_bytes) {
  return row_bytes / (kRowsPage - 4) * (kRowsPage + 24) + kRowsSpareBytes;
}
// Returns the error of a full file. It has no figure of what is taken: several tenants share the
// file.
Error NoRoomInRows(uint64_t max_bytes);

// Thread-compatible.
class RowsRoom {
 public:
  // An erase is not held up by what sessions may have, and has what was kept for it.
  enum class For : uint8_t { kStoring, kErasing };

  // `max_bytes`: of the file and its log.
  RowsRoom(const SealedRowsOptions& options, Storage& storage, uint64_t max_bytes)
      : options_(options), storage_(storage), max_bytes_(max_bytes) {}

  // Begins with an open folder, which must outlive it.
  void Begin(FileId root) { root_ = root; }
  void set_on_need(std::function<void(uint64_t)> on_need) { on_need_ = std::move(on_need); }
  // Says that it is open: while the file is being opened, kUnavailable says that another process
  // has it; after that it says that the device has no room.
  void SetOpen() { is_open_ = true; }
  uint64_t max_bytes() const { return max_bytes_; }
  uint64_t most_row_bytes() const { return most_row_bytes_; }
  void NoteRow(uint64_t row_bytes) { most_row_bytes_ = std::max(most_row_bytes_, row_bytes); }
  // Returns what an edit of the longest row adds to the log: it is erased, and written.
  uint64_t edit_bytes() const { return RowsLogBytes(2 * most_row_bytes_); }
  // Says that what is being done needs so many bytes.
  void Need(uint64_t bytes) { needed_bytes_ = bytes; }
  uint64_t needed_bytes() const { return needed_bytes_; }

  // Takes room for `bytes` more in file and log, as long as the result lives: it is the folder's
  // lock. `scrub` makes the file and its log as short as they can be.
  Result<OpenedFile> Take(uint64_t bytes, For what, const std::function<Status()>& scrub);
  // Keeps the room that an edit needs on a full device. Returns its bytes. REQUIRES: the folder's
  // lock.
  uint64_t Keep();
  // Does as Keep, after erases that do not hold the folder's lock.
  void KeepAgain();
  bool IsKept(uint64_t bytes) const;
  // Gives the room that was kept, if the device is full. False: there is none to give.
  bool GiveKept();
  bool has_given() const { return has_given_; }

  bool IsDeviceFull() const;
  tl::unexpected<Error> NoRoomOnDevice() const;

 private:
  static constexpr uint64_t kLeastRoom = uint64_t{256} << 10;
  uint64_t TakenBytes() const;

  const SealedRowsOptions& options_;
  Storage& storage_;
  const uint64_t max_bytes_;
  FileId root_{};
  std::function<void(uint64_t)> on_need_;
  bool is_open_ = false;
  bool has_given_ = false;              // what was kept for erases
  uint64_t most_row_bytes_ = 0;         // of any row since the file was opened
  uint64_t needed_bytes_ = kLeastRoom;  // by what is being written
};

}  // namespace kvasir
