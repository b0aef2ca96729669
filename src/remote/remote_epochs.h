// RemoteEpochs: the last epoch of each owner that this machine has seen, over restarts.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "base/result.h"

namespace kvasir {

// A file for each owner. Without it, an old copy of a store that is put back, owners' objects
// included, could make a machine that starts later believe what was erased. Thread-safe.
class RemoteEpochs {
 public:
  // "": nothing is kept. The folder is made, 0700, when it is needed.
  explicit RemoteEpochs(std::string folder) : folder_(std::move(folder)) {}

  // `name`: FleetKeys::OwnerName. Returns 0 where none was seen. kCorruption: the file is not a
  // whole note, and half of one would read as a lower epoch.
  Result<uint64_t> Read(std::string_view name) const;
  // Keeps the higher one of this epoch and what is kept; replaces what Read refuses. Logs where it
  // cannot be written.
  void Write(std::string_view name, uint64_t epoch);

 private:
  std::string PathOf(std::string_view name) const;

  const std::string folder_;
  Mutex mutex_;                                   // of Write: what it reads is what it replaces
  mutable std::atomic<bool> has_refused_{false};  // relaxed: one line in the log is enough
};

}  // namespace kvasir
