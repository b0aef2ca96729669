// CursorStore: the final hidden states kept at the ends of prompts and sequences.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "index/prefix_index.h"

namespace kvasir {

// A fixed number of slots, allocated once. A Cursor is keyed by the last full block before it (or
// the namespace's root) and the tokens after that block; both are compared. When all slots are
// used, Keep replaces the Cursor that was kept or used longest ago. A Cursor keeps no blocks:
// the caller must have found all its tokens in the pool. One thread at a time.
class CursorStore {
 public:
  static uint64_t BytesFor(uint32_t num_cursors, uint32_t block_tokens, uint32_t hidden_size);
  CursorStore(uint32_t num_cursors, uint32_t block_tokens, uint32_t hidden_size);

  // REQUIRES: tail.size() < block_tokens, hidden.size() == hidden_size. O(cursors).
  void Keep(NodeId parent, std::span<const TokenId> tail, std::span<const float> hidden);
  // Returns the hidden state, valid until the next Keep or Drop; the Cursor becomes the newest.
  // O(cursors).
  std::optional<std::span<const float>> Find(NodeId parent, std::span<const TokenId> tail);
  // Forgets, and zeroes, all Cursors of a node that leaves the index. O(cursors).
  void Drop(NodeId parent) { DropWith(parent, {}); }
  // Forgets those of its Cursors whose tails begin with `tokens`.
  void DropWith(NodeId parent, std::span<const TokenId> tokens);
  // Forgets those whose tails have at least so many tokens and with which `tokens` begins.
  void DropWithin(NodeId parent, std::span<const TokenId> tokens, size_t least);

  uint32_t num_cursors() const { return num_used_; }
  // Returns the parents of all Cursors, for invariants.
  std::vector<NodeId> Parents() const;
  uint64_t allocated_bytes() const;  // equals BytesFor

 private:
  struct Slot {
    uint64_t last_use = 0;  // 0: empty
    uint32_t tail_tokens = 0;
  };
  static constexpr NodeId kNoParent{~uint32_t{0}};

  template <typename Leaves>
  void DropIf(NodeId parent, Leaves&& leaves);
  std::optional<size_t> SlotOf(NodeId parent, std::span<const TokenId> tail) const;

  uint32_t block_tokens_;
  uint32_t hidden_size_;
  uint32_t num_used_ = 0;
  uint64_t clock_ = 0;
  std::vector<NodeId> parents_;  // [num_cursors], kNoParent: empty. Separate: Drop scans it often
  std::vector<Slot> slots_;      // [num_cursors]
  std::vector<TokenId> tails_;   // [num_cursors][block_tokens]
  std::vector<float> hidden_;    // [num_cursors][hidden_size]
};

}  // namespace kvasir
