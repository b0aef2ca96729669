// CondemnedSlots: makes slots zeros whose records were removed for good.
#pragma once

#include <cstdint>
#include <vector>

#include "tier/segment_files.h"
#include "tier/store.h"

namespace kvasir {

// What happens to segments in which a sync has failed: a later one says nothing any more.
enum class AbandonedSegments : uint8_t {
  // Their files go, records and all. Those with records of owners whose keys cannot be unsealed
  // stay, and
  // the call fails with EIO where a slot of them is condemned.
  kRemoved,
  kLeft,  // they stay as they are
};

// The writer's alone. REQUIRES, for all calls: the store is open.
class CondemnedSlots {
 public:
  CondemnedSlots(Store& store, SegmentFiles& segments) : store_(store), segments_(segments) {}

  // Zeros all condemned slots, of every owner, and makes that durable. What fails is counted, and
  // stays condemned.
  IoStatus ZeroAll(AbandonedSegments abandoned);
  // Condemns the slots of records without a key, once each key file that is left can be unsealed:
  // then no key can claim them.
  IoStatus CondemnOrphans();
  bool HasUnreadKeys() const;

 private:
  IoStatus Zero(uint32_t segment, const std::vector<uint32_t>& slots);

  Store& store_;
  SegmentFiles& segments_;
};

}  // namespace kvasir
