// DailyNote: how many bytes this machine has written to a fleet's store today, over restarts.
#pragma once

#include <cstdint>
#include <string>

#include "base/descriptor.h"

namespace kvasir {

// One file, `written` in the folder of RemoteEpochs: the day (since 1970, UTC) and its bytes, in
// decimal. Bytes are noted before they are written, and some more, so that few of them cost a write
// of the file: after `kill -9` the count is too high by what was noted ahead, never too low. The
// file is locked. Where another process has it, or it cannot be written, the count ends with the
// process. One thread.
class DailyNote {
 public:
  static constexpr uint64_t kMostAhead = uint64_t{64} << 20;
  // Returns how far ahead bytes are noted where a day may have so many, at most.
  static uint64_t AheadOf(uint64_t daily_bytes);

  // "": nothing is kept. The folder is made, 0700, where it is missing.
  DailyNote(const std::string& folder, uint64_t ahead);

  // Returns the bytes of a day; 0: none are noted.
  uint64_t BytesOf(uint64_t day) const { return day == day_ ? bytes_ : 0; }
  // Notes that a day's bytes may become so many before the next call.
  void Cover(uint64_t day, uint64_t bytes);
  // Notes what a day's bytes are, at the end.
  void Settle(uint64_t day, uint64_t bytes);

 private:
  void Write(uint64_t day, uint64_t bytes);

  const uint64_t ahead_;
  Descriptor file_;
  uint64_t day_ = 0, bytes_ = 0;  // what the file has
};

}  // namespace kvasir
