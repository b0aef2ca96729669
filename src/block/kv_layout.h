// KvLayout: how a model's K and V lie in blocks: its layer groups, with blocks of one size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "block/block_layout.h"
#include "block/layer_group.h"

namespace kvasir {

// The groups of one reach. A sequence has a block of each of them for the same tokens; an index
// node has a block of each or of none.
struct KvKind {
  KvReach reach;
  uint32_t first_group;
  uint32_t num_groups;
};

// Groups are ordered by kind: `full` first, then windows, the widest first, then `cross`. The
// groups before `cross` are a sequence's own: they hold KV of its tokens; `cross` holds KV of its
// source.
class KvLayout {
 public:
  // Makes one group: all layers, full.
  KvLayout(BlockLayout layout);  // NOLINT: what most tests and models have
  // Makes groups of at most `slots` layers each (GroupLayers). `shape` has all layers.
  // REQUIRES: reaches.size() == shape.num_layers, slots > 0. (All are kCross only in the scratch of
  // an encoder, which no cache has.)
  KvLayout(const BlockShape& shape, std::span<const KvReach> reaches, uint32_t slots,
           uint32_t max_positions);

  uint32_t num_groups() const { return static_cast<uint32_t>(groups_.size()); }
  const LayerGroup& group(uint32_t group) const { return groups_[group]; }
  const BlockLayout& layout(uint32_t group) const { return layouts_[group]; }
  std::span<const KvKind> kinds() const { return kinds_; }
  uint32_t kind_of(uint32_t group) const { return kind_of_[group]; }
  // 0: the model has no full layers.
  uint32_t num_full_groups() const {
    return kinds_[0].reach.kind == KvReach::Kind::kFull ? kinds_[0].num_groups : 0;
  }
  uint32_t num_own_groups() const { return num_own_groups_; }
  uint32_t num_cross_groups() const { return num_groups() - num_own_groups_; }
  std::span<const KvKind> own_kinds() const { return kinds().first(num_own_kinds_); }
  uint32_t num_full_layers() const;
  bool has_windows() const { return num_full_groups() < num_own_groups_; }
  uint32_t widest_window() const;  // 0: there is none

  // Where a layer's K and V lie: in blocks of `group`, as the slot-th layer of its layout.
  struct Place {
    uint32_t group, slot;
  };
  uint32_t num_layers() const { return static_cast<uint32_t>(places_.size()); }
  Place place(uint32_t layer) const { return places_[layer]; }

  uint32_t block_tokens() const { return layouts_[0].block_tokens(); }
  uint64_t block_bytes() const { return block_bytes_; }  // of every group: the largest layout's
  // Returns the bytes of a token's K and V in all own groups, and in one group (alignment not
  // counted).
  uint64_t token_bytes() const { return token_bytes_; }
  uint64_t token_bytes(uint32_t group) const { return layouts_[group].token_bytes(); }

  // Returns the bytes of K and V of own groups that the token after `tokens` tokens sees.
  uint64_t SeenBytes(uint64_t tokens) const;

  // Returns the most blocks of a kind's groups that a sequence holds while it grows to `tokens`
  // tokens by at most `step_tokens` at a time. For windows this includes a copy of its last block.
  // REQUIRES: an own kind.
  uint64_t SequenceBlocks(const KvKind& kind, uint64_t tokens, uint32_t step_tokens) const;
  // Counts the blocks of all `cross` groups for a source of `tokens` tokens.
  uint64_t SourceBlocks(uint64_t tokens) const;

 private:
  void Finish();

  std::vector<LayerGroup> groups_;
  std::vector<BlockLayout> layouts_;
  std::vector<KvKind> kinds_;
  uint32_t num_own_groups_ = 0, num_own_kinds_ = 0;
  std::vector<uint32_t> kind_of_;  // [group]
  std::vector<Place> places_;      // [layer]
  uint64_t block_bytes_ = 0;
  uint64_t token_bytes_ = 0;
};

// Returns the first token that a query at `position` sees. With window 0 it sees all tokens.
inline uint64_t WindowBegin(uint64_t position, uint32_t window) {
  return window == 0 || position < window ? 0 : position - window + 1;
}

}  // namespace kvasir
