#include "block/layer_group.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/result.h"

namespace kvasir {

Status CheckLayerGroups(std::span<const LayerGroup> groups, uint32_t num_layers) {
  std::vector<size_t> group_of(num_layers, groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const LayerGroup& group = groups[g];
    const auto bad = [g](const std::string& what) {
      return Fail(Code::kInvalidArgument, "layer group {}: {}", g, what);
    };
    if (group.reach.kind == KvReach::Kind::kWindow && group.reach.window == 0) {
      return bad("its window is 0; a query sees at least its own token");
    }
    if (group.layers.empty()) return bad("it has no layers");
    for (size_t i = 0; i < group.layers.size(); ++i) {
      const uint32_t layer = group.layers[i];
      if (layer >= num_layers) {
        return bad(fmt::format("layer {} is not one of the model's {}", layer, num_layers));
      }
      if (group_of[layer] < groups.size()) {
        return bad(fmt::format("layer {} is in group {} too", layer, group_of[layer]));
      }
      if (i > 0 && group.layers[i - 1] > layer) return bad("its layers are not ascending");
      group_of[layer] = g;
    }
  }
  const auto none = std::ranges::find(group_of, groups.size());
  if (none == group_of.end()) return {};
  return Fail(Code::kInvalidArgument, "layer groups: layer {} is in no group",
              none - group_of.begin());
}

uint64_t BlocksFor(const KvReach& reach, uint64_t tokens, uint32_t step_tokens,
                   uint32_t block_tokens) {
  const uint64_t all = CeilDiv(tokens, block_tokens);
  if (reach.kind != KvReach::Kind::kWindow) return all;
  const uint64_t seen = uint64_t{reach.window} - 1 + step_tokens;
  return std::min(all, CeilDiv(seen - 1, block_tokens) + 1);
}

uint64_t SequenceBytes(std::span<const LayerGroup> groups, uint32_t slots,
                       const GroupingCost& cost) {
  const uint64_t block_bytes = slots * cost.layer_token_bytes * cost.block_tokens;
  uint64_t blocks = 0;
  for (const LayerGroup& group : groups) {
    blocks += BlocksFor(group.reach, cost.tokens, 1, cost.block_tokens);
  }
  return blocks * (block_bytes + cost.metadata_bytes);
}

std::vector<LayerGroup> GroupLayers(std::span<const KvReach> layers, uint32_t slots,
                                    uint32_t max_positions) {
  KV_CHECK(slots > 0);
  std::vector<LayerGroup> groups;
  for (uint32_t layer = 0; layer < layers.size(); ++layer) {
    KvReach reach = layers[layer];
    if (reach.kind == KvReach::Kind::kWindow && reach.window >= max_positions) reach = {};
    const auto room = std::ranges::find_if(groups, [&](const LayerGroup& group) {
      return group.reach == reach && group.layers.size() < slots;
    });
    if (room != groups.end()) {
      room->layers.push_back(layer);
    } else {
      groups.push_back({reach, {layer}});
    }
  }
  return groups;
}

uint32_t ChooseSlots(std::span<const KvReach> layers, uint32_t max_positions,
                     const GroupingCost& cost) {
  uint32_t best = 1;
  uint64_t best_bytes = ~uint64_t{0};
  for (uint32_t slots = 1; slots <= layers.size(); ++slots) {
    const uint64_t bytes = SequenceBytes(GroupLayers(layers, slots, max_positions), slots, cost);
    if (bytes > best_bytes) continue;
    best = slots;
    best_bytes = bytes;
  }
  return best;
}

}  // namespace kvasir
