// TierOffer: what a tier has of a prompt, beyond what the pool has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "block/kv_layout.h"
#include "index/prefix_index.h"
#include "kvasir/types.h"
#include "tier/tier.h"

namespace kvasir {

// Whole blocks, from where the match ends.
struct TierOffer {
  struct Record {
    uint32_t block;  // of the sequence
    uint16_t group;  // of the layout
    TierKind from = TierKind::kDisk;
  };
  uint32_t first_block = 0, end_block = 0;
  std::vector<BlockKey> keys;   // [end_block - first_block + 1]; [0]: of the block before the first
  std::vector<Record> records;  // in order of use: the blocks' order, then the groups'

  bool empty() const { return end_block == first_block; }
};

// Where FindOffer looks.
struct TierView {
  const Tier& tier;
  bool has_remote = true;  // false: what a store far away has does not count

  bool Has(const RecordName& name) const {
    return tier.Has(name) && (has_remote || tier.KindOf(name) != TierKind::kRemote);
  }
};

// Looks for the longest beginning of the prompt, in whole blocks and longer than num_reused, of
// which the pool or the tier has everything that the next token sees. `root`: of the prompt's
// namespace; `path`: the nodes of its first blocks, as far as the pool has their `full` blocks.
// O(blocks) HMACs from the end of the path on.
TierOffer FindOffer(const TierView& tier, const PrefixIndex& index, const KvLayout& layout,
                    NodeId root, std::span<const TokenId> prompt, std::span<const NodeId> path,
                    uint32_t num_reused);

}  // namespace kvasir
