// GhostSet: the content hashes of recently evicted blocks.
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir {

// Remembers the last `window` evictions, except a few: it has at least `window` slots in buckets of
// four, and a full bucket drops its oldest. Holds only keyed hashes. All calls O(1). Allocates only
// in its constructor. One thread at a time.
class GhostSet {
 public:
  static uint64_t BytesFor(uint32_t window);
  explicit GhostSet(uint32_t window);

  void Add(uint64_t content);
  bool Take(uint64_t content);  // removes it; whether it was there

  uint64_t allocated_bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  static constexpr uint32_t kBucket = 4;
  struct Slot {
    uint64_t content = 0;
    uint64_t time = 0;  // the number of its eviction, from 1; 0: empty slot
  };
  static uint64_t NumSlots(uint32_t window);
  Slot* BucketOf(uint64_t content);

  uint32_t window_;
  uint64_t now_ = 0;  // evictions so far
  std::vector<Slot> slots_;
};

}  // namespace kvasir
