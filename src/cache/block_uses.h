// BlockUses: what each block of a pool was taken for, and how many tokens it holds.
#pragma once

#include <cstdint>
#include <vector>

#include "block/ids.h"
#include "block/kv_layout.h"

namespace kvasir {

// The uses of all blocks, and the sums of their tokens. A block's tokens are live while sequences
// alone have them, and cached while a node of the index holds the block. Allocates only in its
// constructor. One thread at a time.
class BlockUses {
 public:
  struct Use {
    uint64_t last = 0;  // by the clock of Touch; 0: never used
    uint32_t hits = 0;  // prompts that found the block
    uint32_t group : 15 = 0;
    uint32_t stands_for_kind : 1 = 0;  // the policy knows the node's blocks of the kind by it
    uint32_t account : 16 = 0;
  };

  BlockUses(const KvLayout& layout, uint32_t num_blocks)  // `layout` must outlive this
      : layout_(layout), uses_(num_blocks), live_(num_blocks) {}
  static uint64_t BytesFor(uint32_t num_blocks) {
    return num_blocks * (sizeof(Use) + sizeof(uint32_t) /* live_ */);
  }
  uint64_t allocated_bytes() const {
    return uses_.capacity() * sizeof(Use) + live_.capacity() * sizeof(uint32_t);
  }

  // Takes a block for a group; the first group's block stands for its kind.
  void Take(BlockId block, uint32_t group, AccountId account);
  // Says which block of a source stands for all of them.
  void set_stands_for_kind(BlockId block, bool stands) { At(block).stands_for_kind = stands; }

  const Use& of(BlockId block) const { return uses_[static_cast<size_t>(block)]; }
  uint32_t group(BlockId block) const { return of(block).group; }
  AccountId account(BlockId block) const { return AccountId(of(block).account); }
  const KvKind& kind(BlockId block) const {
    return layout_.kinds()[layout_.kind_of(of(block).group)];
  }
  bool stands_for_kind(BlockId block) const { return of(block).stands_for_kind != 0; }

  void CountHit(BlockId block) { ++At(block).hits; }
  void Touch(BlockId block) { At(block).last = ++clock_; }  // used now
  // Begins anew for a node that begins to hold the block: it is as new as the newest, and no prompt
  // has found it yet.
  void Renew(BlockId block) {
    At(block).last = clock_;
    At(block).hits = 0;
  }

  // Returns how many tokens sequences have in a block which no node holds.
  uint32_t live(BlockId block) const { return live_[static_cast<size_t>(block)]; }
  void SetLive(BlockId block, uint32_t num_tokens);
  // Counts that a node begins or ceases to hold the block with so many tokens.
  void AddCached(BlockId block, uint32_t num_tokens) { cached_bytes_ += Bytes(block, num_tokens); }
  void SubtractCached(BlockId block, uint32_t num_tokens) {
    cached_bytes_ -= Bytes(block, num_tokens);
  }
  uint64_t live_tokens() const { return live_tokens_; }  // of the first group
  // Returns the bytes of live and cached tokens in their blocks, alignment not counted.
  uint64_t held_bytes() const { return live_bytes_ + cached_bytes_; }
  // Aborts unless the sums are right. `cached_bytes`: of the index's tokens, counted anew.
  void CheckInvariants(uint64_t cached_bytes) const;

 private:
  Use& At(BlockId block) { return uses_[static_cast<size_t>(block)]; }
  uint64_t Bytes(BlockId block, uint32_t num_tokens) const {
    return num_tokens * layout_.token_bytes(of(block).group);
  }

  const KvLayout& layout_;
  std::vector<Use> uses_;       // [blocks]
  std::vector<uint32_t> live_;  // [blocks] tokens
  uint64_t clock_ = 0;
  uint64_t live_tokens_ = 0, live_bytes_ = 0, cached_bytes_ = 0;
};

}  // namespace kvasir
