// SegmentFiles: makes and removes the segments of the open store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tier/store.h"

namespace kvasir {

// The writer's alone. REQUIRES, for all calls: the store is open.
class SegmentFiles {
 public:
  // A file of a segment that is not read.
  struct Unusable {
    std::string name;
    bool opens_elsewhere = false;  // a link, or of another version or shape
  };

  explicit SegmentFiles(Store& store) : store_(store) {}

  // Begins anew, with a store whose new segments have numbers from this one on.
  void Begin(uint32_t next_number, std::vector<Unusable> unusable);
  const std::vector<Unusable>& unusable() const { return unusable_; }

  // Makes a segment, with free slots. False: it could not be made; counted, unless the device is
  // full. REQUIRES: the folder's lock.
  bool Make();
  // Returns the error with which the last Make found no room (IsFull), if it did.
  std::optional<int> refusal() const { return refusal_; }
  // Removes the segment's file, and all records that lie in it or depend on one of those. EBUSY:
  // it is being read. REQUIRES: no group is being written.
  IoStatus Remove(uint32_t segment, EvictCause cause);
  // Removes the segment whose most recently used record is the coldest. False: there is none.
  bool RemoveColdest(EvictCause cause);
  // Removes abandoned segments whose last record has left.
  void RemoveAbandoned();
  // Removes a file of ours whose segment cannot be read: damaged, of another version or of another
  // shape. Or a segment in which the records that no key unseals outnumber the others.
  bool RemoveUnusable();
  // Removes damaged files, which the next start might read. Those of another version or shape have
  // blocks of others too, which another build reads: they stay. Not durable yet.
  IoStatus RemoveDamaged();

 private:
  Store& store_;
  std::vector<Unusable> unusable_;
  uint32_t next_number_ = 0;
  std::optional<int> refusal_;
};

}  // namespace kvasir
