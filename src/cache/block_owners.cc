#include "cache/block_owners.h"

#include <cstring>

#include "base/check.h"

namespace kvasir {

void BlockOwners::Take(BlockRef& block, NamespaceId ns) {
  uint32_t& owner = owners_[static_cast<size_t>(block.id())];
  if ((owner & kForgotten) != 0) {  // Zero has not reached it
    std::memset(block.mutable_data(), 0, pool_.block_bytes());
    --num_forgotten_;
  }
  owner = static_cast<uint32_t>(ns) + 1;
}

uint64_t BlockOwners::Forget(NamespaceId ns) {
  for (uint32_t b = 0; b < owners_.size(); ++b) {
    if (owners_[b] != static_cast<uint32_t>(ns) + 1) continue;
    if (pool_.is_free(BlockId{b})) {
      owners_[b] |= kForgotten;
      ++num_forgotten_;
    } else if (!pool_.retained(BlockId{b})) {
      pool_.Scrub(BlockId{b});
    }
  }
  return point();
}

void BlockOwners::Zero(uint64_t bytes) {
  for (uint64_t zeroed = 0; num_forgotten_ > 0 && zeroed < bytes; ++zeroing_at_) {
    const auto b = static_cast<uint32_t>(zeroing_at_ % pool_.num_blocks());
    if ((owners_[b] & kForgotten) == 0) continue;
    pool_.Scrub(BlockId{b});
    owners_[b] = 0;
    --num_forgotten_;
    zeroed += pool_.block_bytes();
  }
}

void BlockOwners::CheckInvariants() const {
  uint32_t num_forgotten = 0;
  for (uint32_t b = 0; b < owners_.size(); ++b) {
    KV_CHECK(pool_.is_free(BlockId{b}) || owners_[b] != 0);
    if ((owners_[b] & kForgotten) == 0) continue;
    KV_CHECK(pool_.is_free(BlockId{b}));
    ++num_forgotten;
  }
  KV_CHECK(num_forgotten == num_forgotten_);
}

}  // namespace kvasir
