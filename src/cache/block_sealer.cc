#include "cache/block_sealer.h"

#include <array>
#include <span>

#include "base/clock.h"
#include "cache/record_names.h"

namespace kvasir {
namespace {

constexpr uint32_t kSealedAtOnce = 8;  // between two looks at the clock

}  // namespace

void BlockSealer::Push(BlockId block) {
  const auto node = parts_.index.node_of(block);
  if (node && parts_.index.tokens(*node).size() == parts_.layout.block_tokens()) {
    queue_.Push(block);
  }
}

void BlockSealer::Remove(BlockId block, bool evicted) {
  if (evicted) SealLeaving(block);
  queue_.Remove(block);
}

// Takes a buffer of the tier for a block that is in the index.
tl::expected<WriteId, WriteRefusal> BlockSealer::BeginWrite(BlockId block) {
  const PrefixIndex& index = parts_.index;
  const NodeId node = *index.node_of(block);
  const NodeId parent = index.parent(node);
  const BlockUses::Use& use = parts_.uses.of(block);
  RecordFacts facts = RecordFactsOf(parts_.layout, index.key(node), index.key(parent),
                                    PrefixIndex::is_root(parent), use.group, index.tokens(node),
                                    parts_.namespaces.Of(parts_.owners.of(block)).owner);
  facts.used_again = use.hits > 0;
  return parts_.tier.BeginWrite(facts);
}

// Counts a block that leaves the queue unwritten. The tier has the others already, or stores
// nothing.
void BlockSealer::CountRefused(WriteRefusal why) {
  if (why == WriteRefusal::kBudget) parts_.tier.CountDropped(why);
}

bool BlockSealer::SealUntil(uint64_t end_ns, const ForEach& for_each) {
  struct Write {
    WriteId id;
    BlockId block;
  };
  std::array<Write, kSealedAtOnce> batch;
  while (queue_.size() > 0) {
    uint32_t num = 0;
    bool has_room = true;
    while (num < kSealedAtOnce && has_room) {
      const auto block = queue_.front();
      if (!block) break;
      const auto write = BeginWrite(*block);
      has_room = write || write.error() != WriteRefusal::kNoBuffer;
      if (!has_room) break;
      queue_.Remove(*block);
      if (write) {
        batch[num++] = {*write, *block};
      } else {
        CountRefused(write.error());
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
  while (queue_.size() > 0) {
    queue_.Remove(*queue_.front());
    parts_.tier.CountDropped(WriteRefusal::kNoBuffer);
  }
}

void BlockSealer::SealLeaving(BlockId block) {
  while (queue_.Contains(block)) {
    const BlockId next = *queue_.front();
    const auto write = BeginWrite(next);
    if (!write && write.error() == WriteRefusal::kNoBuffer) {
      queue_.Remove(block);
      parts_.tier.CountDropped(write.error());
      return;
    }
    queue_.Remove(next);
    if (write) {
      parts_.tier.Seal(*write, {parts_.pool.data(next), parts_.layout.block_bytes()});
      parts_.tier.EndWrite(*write);
    } else {
      CountRefused(write.error());
    }
  }
}

}  // namespace kvasir
