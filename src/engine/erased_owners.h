// ErasedOwners: owners that another machine of the fleet has erased, until nothing is left of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "kvasir/engine.h"
#include "remote/remote_store.h"

namespace kvasir {

// The engine erases what its cache has of an owner, and its caller what else the process keeps,
// sessions above all. The epoch is noted after both: a crash before costs an erase too many, never
// one too few. Thread-compatible.
class ErasedOwners {
 public:
  // Notes that the cache begins to erase. Does nothing more the second time.
  void Begin(const ErasedOwner& erased);
  // Ends the cache's part. Returns what may be noted now.
  std::optional<ErasedOwner> EndCache(const ErasedOwner& erased);
  // Ends the caller's part. Returns what may be noted now.
  std::optional<ErasedOwner> EndOthers(const ErasedElsewhere& erased);
  // Lists owners whose rest the caller has to erase.
  std::vector<ErasedElsewhere> List() const;

 private:
  struct Epochs {
    uint64_t wanted = 0;             // of the last erase
    uint64_t cache = 0, others = 0;  // of the last one that is done
  };
  using Owners = std::map<OwnerDigest, Epochs>;

  std::optional<ErasedOwner> NoteOf(Owners::iterator owner);

  Owners owners_;
};

}  // namespace kvasir
