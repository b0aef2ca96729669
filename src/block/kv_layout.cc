#include "block/kv_layout.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"

namespace kvasir {
namespace {

std::vector<LayerGroup> OneGroup(uint32_t num_layers) {
  std::vector<KvReach> full(num_layers);
  return GroupLayers(full, num_layers, 0);
}

// Orders full layers before windows, wide windows before narrow ones, cross layers last.
bool IsBefore(const LayerGroup& a, const LayerGroup& b) {
  if (a.reach.kind != b.reach.kind) return a.reach.kind < b.reach.kind;
  return a.reach.window > b.reach.window;
}

BlockShape ShapeOf(const BlockShape& all, const LayerGroup& group) {
  BlockShape shape = all;
  shape.num_layers = static_cast<uint32_t>(group.layers.size());
  shape.k_format.clear();
  shape.v_format.clear();
  for (const uint32_t layer : group.layers) {
    shape.k_format.push_back(all.k_format[layer]);
    shape.v_format.push_back(all.v_format[layer]);
  }
  return shape;
}

}  // namespace

KvLayout::KvLayout(BlockLayout layout) : groups_(OneGroup(layout.shape().num_layers)) {
  layouts_.push_back(std::move(layout));
  Finish();
}

KvLayout::KvLayout(const BlockShape& shape, std::span<const KvReach> reaches, uint32_t slots,
                   uint32_t max_positions)
    : groups_(GroupLayers(reaches, slots, max_positions)) {
  KV_CHECK(reaches.size() == shape.num_layers);
  std::stable_sort(groups_.begin(), groups_.end(), IsBefore);
  KV_CHECK(CheckLayerGroups(groups_, shape.num_layers));
  for (const LayerGroup& group : groups_) layouts_.emplace_back(ShapeOf(shape, group));
  Finish();
}

void KvLayout::Finish() {
  size_t num_layers = 0;
  for (const LayerGroup& group : groups_) num_layers += group.layers.size();
  places_.resize(num_layers);
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    const bool own = groups_[g].reach.kind != KvReach::Kind::kCross;
    if (kinds_.empty() || !(kinds_.back().reach == groups_[g].reach)) {
      kinds_.push_back({groups_[g].reach, g, 0});
      num_own_kinds_ += own;
    }
    ++kinds_.back().num_groups;
    kind_of_.push_back(static_cast<uint32_t>(kinds_.size() - 1));
    for (uint32_t slot = 0; slot < groups_[g].layers.size(); ++slot) {
      places_[groups_[g].layers[slot]] = {g, slot};
    }
    block_bytes_ = std::max(block_bytes_, layouts_[g].block_bytes());
    if (own) token_bytes_ += layouts_[g].token_bytes();
    num_own_groups_ += own;
  }
}

uint32_t KvLayout::num_full_layers() const {
  size_t layers = 0;
  for (uint32_t i = 0; i < num_full_groups(); ++i) layers += groups_[i].layers.size();
  return static_cast<uint32_t>(layers);
}

uint32_t KvLayout::widest_window() const {
  uint32_t widest = 0;
  for (const KvKind& kind : kinds_) widest = std::max(widest, kind.reach.window);
  return widest;
}

uint64_t KvLayout::SequenceBlocks(const KvKind& kind, uint64_t tokens, uint32_t step_tokens) const {
  KV_CHECK(kind.reach.kind != KvReach::Kind::kCross);
  const bool copies = kind.reach.kind == KvReach::Kind::kWindow;
  return kind.num_groups * (BlocksFor(kind.reach, tokens, step_tokens, block_tokens()) + copies);
}

uint64_t KvLayout::SeenBytes(uint64_t tokens) const {
  uint64_t bytes = 0;
  for (uint32_t group = 0; group < num_own_groups(); ++group) {
    bytes += token_bytes(group) * (tokens - WindowBegin(tokens, groups_[group].reach.window));
  }
  return bytes;
}

uint64_t KvLayout::SourceBlocks(uint64_t tokens) const {
  return num_cross_groups() * CeilDiv(tokens, block_tokens());
}

}  // namespace kvasir
