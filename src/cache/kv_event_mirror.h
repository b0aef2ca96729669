// KvEventMirror: the published blocks of the index, as a publisher's thread knows them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "index/block_key.h"
#include "index/prefix_index.h"
#include "kvasir/types.h"

namespace kvasir {

// A table by node. A block's parent is here too, so that all of them can be listed, parents first.
// Allocates only in its constructor. One thread at a time.
class KvEventMirror {
 public:
  static constexpr uint32_t kNoParent = ~uint32_t{0};
  struct Block {
    BlockKey key;
    uint64_t hash;    // that events have; 0: not computed yet
    uint32_t parent;  // the node, or kNoParent: the block begins a prompt
    bool is_here;
  };

  KvEventMirror(uint32_t num_nodes, uint32_t block_tokens)
      : block_tokens_(block_tokens),
        blocks_(num_nodes),
        tokens_(size_t{num_nodes} * block_tokens) {}
  static uint64_t BytesFor(uint32_t num_nodes, uint32_t block_tokens) {
    return num_nodes * (sizeof(Block) + uint64_t{block_tokens} * sizeof(TokenId));
  }
  uint64_t allocated_bytes() const {
    return blocks_.capacity() * sizeof(Block) + tokens_.capacity() * sizeof(TokenId);
  }

  void Put(uint32_t node, uint32_t parent, const BlockKey& key, std::span<const TokenId> tokens) {
    num_here_ += blocks_[node].is_here ? 0 : 1;
    blocks_[node] = {.key = key, .hash = 0, .parent = parent, .is_here = true};
    std::ranges::copy(tokens, &tokens_[size_t{node} * block_tokens_]);
  }
  // Wipes the block: none of its tokens stays in memory.
  void Remove(uint32_t node) {
    num_here_ -= blocks_[node].is_here ? 1 : 0;
    blocks_[node] = {};
    std::fill_n(&tokens_[size_t{node} * block_tokens_], block_tokens_, 0);
  }
  void Clear() {
    for (uint32_t node = 0; node < size(); ++node) {
      if (blocks_[node].is_here) Remove(node);
    }
  }
  uint32_t size() const { return static_cast<uint32_t>(blocks_.size()); }
  uint32_t num_here() const { return num_here_; }
  Block& at(uint32_t node) { return blocks_[node]; }
  const Block& at(uint32_t node) const { return blocks_[node]; }
  std::span<const TokenId> tokens(uint32_t node) const {
    return {&tokens_[size_t{node} * block_tokens_], block_tokens_};
  }

 private:
  uint32_t block_tokens_;
  uint32_t num_here_ = 0;
  std::vector<Block> blocks_;    // [node]
  std::vector<TokenId> tokens_;  // [node][block_tokens]
};

}  // namespace kvasir
