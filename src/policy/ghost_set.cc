#include "policy/ghost_set.h"

#include <algorithm>
#include <bit>

#include "base/random.h"

namespace kvasir {

uint64_t GhostSet::NumSlots(uint32_t window) {
  return std::max<uint64_t>(std::bit_ceil(uint64_t{window}), kBucket);
}

uint64_t GhostSet::BytesFor(uint32_t window) { return NumSlots(window) * sizeof(Slot); }

GhostSet::GhostSet(uint32_t window) : window_(window), slots_(NumSlots(window)) {}

GhostSet::Slot* GhostSet::BucketOf(uint64_t content) {
  return &slots_[Mix64(content) & (slots_.size() - kBucket)];
}

void GhostSet::Add(uint64_t content) {
  Slot* bucket = BucketOf(content);
  Slot* oldest = std::min_element(bucket, bucket + kBucket,
                                  [](const Slot& a, const Slot& b) { return a.time < b.time; });
  *oldest = {.content = content, .time = ++now_};
}

bool GhostSet::Take(uint64_t content) {
  Slot* bucket = BucketOf(content);
  for (uint32_t i = 0; i < kBucket; ++i) {
    if (bucket[i].time == 0 || bucket[i].content != content) continue;
    const bool recent = now_ - bucket[i].time < window_;
    bucket[i] = {};
    return recent;
  }
  return false;
}

}  // namespace kvasir
