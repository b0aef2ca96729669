// RemovalNotes: which owners a fleet's store shall have nothing of, over restarts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"

namespace kvasir {

// A file for each owner of whom something was to be removed and could not be. The keys of a forget
// are not kept: after a restart all of the owner is removed. Thread-compatible.
class RemovalNotes {
 public:
  // "": nothing is kept. The folder is made, 0700, when it is needed.
  explicit RemovalNotes(std::string folder) : folder_(std::move(folder)) {}

  // Returns the owners with a note; one that is damaged is left out, with a line in the log.
  std::vector<Digest> All() const;
  // Notes an owner. `name`: FleetKeys::OwnerName. Logs where it cannot be written.
  void Add(std::string_view name, const Digest& owner) const;
  // Removes an owner's note, if there is one.
  void Remove(std::string_view name) const;
  bool is_kept() const { return !folder_.empty(); }

 private:
  std::string PathOf(std::string_view name) const;

  const std::string folder_;
};

}  // namespace kvasir
