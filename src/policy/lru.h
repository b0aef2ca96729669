// Lru: the block that has been idle longest goes first.
#pragma once

#include <vector>

#include "policy/eviction_policy.h"

namespace kvasir {

// A doubly linked list in two arrays; entry num_blocks is its head. All moves are O(1); Victim is
// O(1) when the oldest block may go, which is so wherever sequences release their tail first.
class Lru final : public EvictionPolicy {
 public:
  static uint64_t BytesFor(uint32_t num_blocks);
  explicit Lru(uint32_t num_blocks);

  void OnIdle(BlockId id) override;
  void OnBusy(BlockId id) override;
  std::optional<BlockId> Victim(const std::function<bool(BlockId)>& evictable) const override;
  uint32_t num_idle() const override { return num_idle_; }
  uint64_t allocated_bytes() const override;
  void CheckInvariants() const override;

 private:
  struct Link {
    uint32_t older;
    uint32_t newer;
  };
  static constexpr uint32_t kNotIdle = ~uint32_t{0};

  uint32_t num_blocks_;
  uint32_t num_idle_ = 0;
  std::vector<Link> links_;  // [num_blocks + 1]
};

}  // namespace kvasir
