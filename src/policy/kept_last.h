// KeptLast: has blocks that somebody marked evicted after all others, for a time.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "policy/eviction_policy.h"

namespace kvasir {

// What a mark asks for. A mark is an order among idle blocks, no reservation: a marked block is
// evicted where no other one can be.
struct BlockMark {
  uint32_t account = 0;     // whose mark it is
  uint32_t num_blocks = 0;  // that stay because of it: its prompt's, to its end
  uint64_t ttl_ns = 0;      // since the last use
};

// Decorates a policy. While a block is marked, the policy takes it for held. Marks end with their
// time, when their block leaves, or when their account has too many: then the one used longest ago
// ends. Without marks each call costs a test of a bit more than the policy's. Allocates only in its
// constructor. One thread at a time.
class KeptLast final : public EvictionPolicy {
 public:
  static uint64_t BytesFor(const EvictionLimits& limits);
  KeptLast(std::unique_ptr<EvictionPolicy> policy, const EvictionLimits& limits);

  // Marks a block, or renews its mark (the longer time counts). The marks of an account keep at
  // most most_blocks together, each counted by itself; false: this one alone keeps more. `facts`:
  // current ones. O(marks), and as much for each mark that it ends. REQUIRES: held.
  bool Mark(BlockId id, const BlockFacts& facts, BlockMark mark, uint64_t most_blocks);
  // Notes that a prompt uses the block: a mark's time begins again.
  void Use(BlockId id) {
    if (is_marked(id)) Renew(id);
  }
  bool is_marked(BlockId id) const { return places_[static_cast<size_t>(id)] != 0; }
  uint32_t num_marks() const { return static_cast<uint32_t>(marks_.size()); }

  void OnInserted(BlockId id, const BlockFacts& facts) override { policy_->OnInserted(id, facts); }
  void OnEvictable(BlockId id, const BlockFacts& facts) override;
  void OnHeld(BlockId id) override;
  void OnEvicted(BlockId id) override;
  void OnForgotten(BlockId id) override;
  std::optional<BlockId> Victim(const EvictionScope& scope) override;
  bool is_evictable(BlockId id) const override;
  uint32_t num_evictable() const override { return policy_->num_evictable() + num_kept_; }
  uint64_t allocated_bytes() const override;
  void CheckInvariants() const override;

 private:
  struct Kept {
    BlockId id;
    BlockMark mark;
    BlockFacts facts;  // of OnEvictable
    uint64_t used_ns;
    bool is_evictable;
    uint64_t until_ns() const { return used_ns + mark.ttl_ns; }
  };

  static uint32_t MostMarks(const EvictionLimits& limits);
  Kept& Of(BlockId id) { return marks_[places_[static_cast<size_t>(id)] - 1]; }
  const Kept& Of(BlockId id) const { return marks_[places_[static_cast<size_t>(id)] - 1]; }
  void Renew(BlockId id) { Of(id).used_ns = MonotonicNs(); }
  // Ends a mark: the policy decides on the block from now on.
  void End(BlockId id);
  // Takes a mark out of the table, whatever the policy knows of its block. The last one takes its
  // place.
  void Drop(BlockId id);
  void EndPast();
  const Kept* UsedLongestAgo(std::optional<uint32_t> account) const;

  const std::unique_ptr<EvictionPolicy> policy_;
  const uint32_t most_marks_;
  std::vector<uint16_t> places_;         // [num_blocks]: of its mark, from 1; 0: none
  std::vector<Kept> marks_;              // in no order
  uint32_t num_kept_ = 0;                // evictable marked blocks
  uint64_t next_end_ns_ = ~uint64_t{0};  // no mark ends before
};

}  // namespace kvasir
