// RemoteNames: which records a fleet's store has, as far as this machine has seen lately.
#pragma once

#include <cstdint>

#include "base/arena.h"
#include "tier/owner_keys.h"
#include "tier/tier.h"

namespace kvasir {

// A table of a fixed size. A name that comes takes the place of the one in its bucket that was seen
// longest ago and is not being written. Thread-compatible. Allocates only from the arena, in its
// constructor.
class RemoteNames {
 public:
  static constexpr uint32_t kFreshS = 600, kKnownS = 3600;

  struct Entry {
    RecordName name;
    OwnerId owner{};
    bool is_taken = false, is_writing = false;
    uint32_t seen_s = 0;       // 0: not seen, or not to be believed any more
    uint32_t refreshed_s = 0;  // when this machine wrote it or began its lifetime anew; 0: never

    bool IsFresh(uint32_t now_s) const {
      return !is_writing && seen_s != 0 && now_s < seen_s + kFreshS;
    }
    // Returns whether it need not be written again.
    bool IsKnown(uint32_t now_s) const {
      return is_writing || IsFresh(now_s) || (seen_s != 0 && !IsDue(now_s));
    }
    // Returns whether its lifetime shall begin anew when it is used.
    bool IsDue(uint32_t now_s) const { return refreshed_s == 0 || now_s >= refreshed_s + kKnownS; }
  };

  // `num_names`: a power of two, at least 8.
  RemoteNames(Arena& arena, uint32_t num_names);

  Entry* Find(const RecordName& name);
  const Entry* Find(const RecordName& name) const;
  // Returns the name's entry, made if it has none. nullptr: its bucket is being written.
  Entry* Put(const RecordName& name, OwnerId owner);
  static void Remove(Entry* entry) { *entry = {}; }
  // Removes all names of an owner. O(names).
  void RemoveOwner(OwnerId owner);
  // Makes all names of an owner unseen: they are looked for, and written, again. O(names).
  void DoubtOwner(OwnerId owner);
  uint32_t size() const { return num_names_; }

 private:
  static constexpr uint32_t kBucket = 8;
  Entry* BucketOf(const RecordName& name) const;

  Entry* entries_;
  uint32_t num_names_;
};

}  // namespace kvasir
