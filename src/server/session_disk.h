// SessionDisk: where sessions outlive the process: sessions.db in the folder of the disk tier.
#pragma once

#include <atomic>
#include <string>

#include "kvasir/engine.h"
#include "kvasir/session.h"

namespace kvasir {

// Opens the file of a server's kept sessions, and keeps trying where that failed. Without a disk
// tier it does nothing. Thread-safe; one call of Open or Sweep at a time, which waits for the disk.
class SessionDisk {
 public:
  // REQUIRES: both outlive this.
  SessionDisk(Engine& engine, SessionStore& sessions);

  // Opens the file. After an error sessions are kept in memory, and the log says why.
  void Open();
  // Removes sessions that were not used for long, and opens the file where it is not open. Gives it
  // up where another process has the blocks.
  void Sweep();
  // Tells whether another process has the file, so that Sweep should be called soon.
  bool waits() const { return waits_.load(std::memory_order_relaxed); }

 private:
  Engine& engine_;
  SessionStore& sessions_;
  std::string why_not_;             // as it was logged last
  std::atomic<bool> waits_{false};  // relaxed: it publishes no data
};

}  // namespace kvasir
