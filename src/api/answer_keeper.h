// AnswerKeeper: keeps an answer somewhere else too, while it comes.
#pragma once

#include <cstdint>

#include "kvasir/engine_event.h"
#include "kvasir/status.h"

namespace kvasir {

// Its destructor drops what was not finished.
class AnswerKeeper {
 public:
  virtual ~AnswerKeeper() = default;
  virtual void Take(const Event& event) = 0;  // every event without an error
  // Ends it, after the last event. An error is the answer's: then nothing was kept.
  virtual Status Finish() = 0;
  // Tells whether Finish and the end of this wait for a disk.
  virtual bool waits_for_disk() const { return false; }
  virtual uint64_t held_bytes() const = 0;
};

}  // namespace kvasir
