// RowsCopy: the files of SealedRows as they were at one instant, while another process writes them.
#pragma once

#include <string>
#include <utility>

#include "kvasir/status.h"
#include "tier/storage.h"

namespace kvasir {

// A folder with copies of sessions.db, its log and its keys, for SealedRows::Open. It has all that
// was durable when Make began, and no change by half. It is removed with this object; rows that
// were opened before stay readable.
class RowsCopy {
 public:
  // Copies the rows of the folder `from` into a new folder, 0700, whose name begins with `beside`.
  // Other processes cannot store rows meanwhile: they wait. kUnavailable: they change too often to
  // be copied; kExhausted: no room; other errors are those of the system. O(bytes).
  static Result<RowsCopy> Make(const std::string& from, const std::string& beside,
                               Storage& storage);
  RowsCopy(RowsCopy&& other) noexcept : folder_(std::exchange(other.folder_, "")) {}
  RowsCopy& operator=(RowsCopy&&) = delete;
  ~RowsCopy();

  const std::string& folder() const { return folder_; }

 private:
  explicit RowsCopy(std::string folder) : folder_(std::move(folder)) {}

  std::string folder_;  // empty: another object has it
};

}  // namespace kvasir
