#include "cache/block_sealer.h"

#include <array>
#include <span>

#include "base/clock.h"
#include "cache/record_names.h"

namespace kvasir {
namespace {

constexpr uint32_t kSealedAtOnce = 8;  // between two looks at the clock

}  // namespace

void BlockSealer::Push(BlockId block, uint8_t stores) {
  const auto node = parts_.index.node_of(block);
  if (!node || parts_.index.tokens(*node).size() != parts_.layout.block_tokens()) return;
  for (uint32_t store = 0; store < queues_.size(); ++store) {
    if ((stores >> store & 1) != 0) queues_[store].Push(block);
  }
}

void BlockSealer::Remove(BlockId block, bool evicted) {
  for (uint32_t store = 0; store < queues_.size(); ++store) {
    if (evicted) SealLeaving(block, store);
    queues_[store].Remove(block);
  }
}

uint32_t BlockSealer::size() const {
  uint32_t sum = 0;
  for (const WriteQueue& queue : queues_) sum += queue.size();
  return sum;
}

BlockSealer::Point BlockSealer::point() const {
  Point point{};
  for (size_t i = 0; i < queues_.size(); ++i) point[i] = queues_[i].last_ticket();
  return point;
}

bool BlockSealer::IsSealed(const Point& point) const {
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (!queues_[i].HasPassed(point[i])) return false;
  }
  return true;
}

// Takes a buffer of the tier for a block that is in the index.
tl::expected<WriteId, WriteRefusal> BlockSealer::BeginWrite(BlockId block, uint32_t store) {
  const PrefixIndex& index = parts_.index;
  const NodeId node = *index.node_of(block);
  const NodeId parent = index.parent(node);
  const BlockUses::Use& use = parts_.uses.of(block);
  RecordFacts facts = RecordFactsOf(parts_.layout, index.key(node), index.key(parent),
                                    PrefixIndex::is_root(parent), use.group, index.tokens(node),
                                    parts_.namespaces.Of(parts_.owners.of(block)).owner);
  facts.used_again = use.hits > 0;
  facts.store = static_cast<uint8_t>(store);
  return parts_.tier.BeginWrite(facts);
}

// Counts a block that leaves the queue unwritten. The tier has the others already, or stores
// nothing.
void BlockSealer::CountRefused(WriteRefusal why, uint32_t store) {
  if (why == WriteRefusal::kBudget) parts_.tier.CountDropped(why, store);
}

bool BlockSealer::SealUntil(uint64_t end_ns, const ForEach& for_each) {
  bool has_room = true;
  for (uint32_t store = 0; store < queues_.size(); ++store) {
    has_room &= SealStore(store, end_ns, for_each);
  }
  return has_room;
}

bool BlockSealer::SealStore(uint32_t store, uint64_t end_ns, const ForEach& for_each) {
  WriteQueue& queue = queues_[store];
  struct Write {
    WriteId id;
    BlockId block;
  };
  std::array<Write, kSealedAtOnce> batch;
  while (queue.size() > 0) {
    uint32_t num = 0;
    bool has_room = true;
    while (num < kSealedAtOnce && has_room) {
      const auto block = queue.front();
      if (!block) break;
      const auto write = BeginWrite(*block, store);
      has_room = write || write.error() != WriteRefusal::kNoBuffer;
      if (!has_room) break;
      queue.Remove(*block);
      if (write) {
        batch[num++] = {*write, *block};
      } else {
        CountRefused(write.error(), store);
      }
    }
    for_each(num, [&](uint32_t i) {
      parts_.tier.Seal(batch[i].id,
                       {parts_.pool.data(batch[i].block), parts_.layout.block_bytes()});
    });
    for (uint32_t i = 0; i < num; ++i) parts_.tier.EndWrite(batch[i].id);
    if (!has_room) return false;
    if (MonotonicNs() >= end_ns) break;
  }
  return true;
}

void BlockSealer::DropAll() {
  for (uint32_t store = 0; store < queues_.size(); ++store) {
    WriteQueue& queue = queues_[store];
    while (queue.size() > 0) {
      queue.Remove(*queue.front());
      parts_.tier.CountDropped(WriteRefusal::kNoBuffer, store);
    }
  }
}

void BlockSealer::SealLeaving(BlockId block, uint32_t store) {
  WriteQueue& queue = queues_[store];
  while (queue.Contains(block)) {
    const BlockId next = *queue.front();
    const auto write = BeginWrite(next, store);
    if (!write && write.error() == WriteRefusal::kNoBuffer) {
      queue.Remove(block);
      parts_.tier.CountDropped(write.error(), store);
      return;
    }
    queue.Remove(next);
    if (write) {
      parts_.tier.Seal(*write, {parts_.pool.data(next), parts_.layout.block_bytes()});
      parts_.tier.EndWrite(*write);
    } else {
      CountRefused(write.error(), store);
    }
  }
}

}  // namespace kvasir
