// LayerGroup: layers whose KV lives and dies together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// Which tokens a layer's queries see, and so how long its KV lives.
struct KvReach {
  enum class Kind : uint8_t { kFull, kWindow, kCross };
  Kind kind = Kind::kFull;
  uint32_t window = 0;  // of kWindow: a query at p sees p - window + 1 .. p
  bool operator==(const KvReach&) const = default;
};

// A block of a group holds K and V of block_tokens tokens for its layers. Layers are those of KV:
// an encoder-decoder's have one for themselves and one for the source each.
struct LayerGroup {
  KvReach reach;
  std::vector<uint32_t> layers;  // ascending
};

// kInvalidArgument, naming the group: a window of 0, no layers, layers that are not ascending or
// not below num_layers, one that is in two groups. Also a layer that is in none.
Status CheckLayerGroups(std::span<const LayerGroup> groups, uint32_t num_layers);

// The blocks of a group that a sequence of `tokens` tokens needs at once (of kCross: of a source of
// so many). A window needs those of its last window - 1 tokens and of the next token, wherever it
// stands in its block.
uint64_t BlocksFor(const LayerGroup& group, uint64_t tokens, uint32_t block_tokens);

// What decides how many layers a block has.
struct GroupingCost {
  uint64_t layer_token_bytes;  // of K and V of one token in one layer
  uint32_t block_tokens = 16;
  uint64_t tokens;                // of the sequences that are planned for
  uint64_t metadata_bytes = 200;  // of a block, beside its bytes
};

// Bytes that one sequence takes in blocks of `slots` layers, empty slots included.
uint64_t SequenceBytes(std::span<const LayerGroup> groups, uint32_t slots,
                       const GroupingCost& cost);

// Groups of at most `slots` layers each, in the order of their first layers; a window that is no
// shorter than max_positions is full.
std::vector<LayerGroup> GroupLayers(std::span<const KvReach> layers, uint32_t slots,
                                    uint32_t max_positions);
// The number of layers of a block with the fewest SequenceBytes; of equal ones the largest.
// Each kind of layer is cut into groups of so many: then all blocks have one size, one arena serves
// all groups, and a sequence's blocks of any group may be anywhere in it (docs/decisions/0011).
// O(layers^2).
uint32_t ChooseSlots(std::span<const KvReach> layers, uint32_t max_positions,
                     const GroupingCost& cost);

}  // namespace kvasir
