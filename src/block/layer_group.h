// LayerGroup: layers whose KV is kept and given back together.
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

// A block of a group holds K and V of block_tokens tokens for its layers. Here each pair of K and V
// counts as a layer: a decoder layer of an encoder-decoder has two, one for its own tokens and one
// for the source.
struct LayerGroup {
  KvReach reach;
  std::vector<uint32_t> layers;  // ascending
};

// kInvalidArgument, naming the group: a window of 0, no layers, layers that are not ascending or
// not below num_layers, a layer in two groups. Also for a layer in no group.
Status CheckLayerGroups(std::span<const LayerGroup> groups, uint32_t num_layers);

// Returns the most blocks of such a layer group that a sequence needs at once while it grows to
// `tokens` tokens by at most `step_tokens` at a time (of kCross: a source of `tokens` tokens). A
// window needs the blocks of the last window - 1 tokens and of the step's, wherever they lie in
// their blocks.
uint64_t BlocksFor(const KvReach& reach, uint64_t tokens, uint32_t step_tokens,
                   uint32_t block_tokens);

// What decides how many layers a block has.
struct GroupingCost {
  uint64_t layer_token_bytes;  // of K and V of one token in one layer
  uint32_t block_tokens = 16;
  uint64_t tokens;                // of each sequence that is planned for
  uint64_t metadata_bytes = 200;  // per block, beside its K and V
};

// Returns the bytes that one sequence takes in blocks of `slots` layers, empty slots included.
uint64_t SequenceBytes(std::span<const LayerGroup> groups, uint32_t slots,
                       const GroupingCost& cost);

// Makes groups of at most `slots` layers each, in the order of their first layers. A window of at
// least max_positions counts as full.
std::vector<LayerGroup> GroupLayers(std::span<const KvReach> layers, uint32_t slots,
                                    uint32_t max_positions);
// Returns the number of layers per block that gives the fewest SequenceBytes; of equal numbers the
// largest. GroupLayers cuts each kind of layer into groups of at most this many. Then all blocks
// have one size, one arena serves all groups, and any block can serve any group
// (docs/decisions/0011). O(layers^2).
uint32_t ChooseSlots(std::span<const KvReach> layers, uint32_t max_positions,
                     const GroupingCost& cost);

}  // namespace kvasir
