#include "cache/block_uses.h"

#include "base/check.h"

namespace kvasir {

void BlockUses::Take(BlockId block, uint32_t group, AccountId account) {
  Use& use = At(block);
  use.group = group;
  use.stands_for_kind = group == layout_.kinds()[layout_.kind_of(group)].first_group;
  use.account = static_cast<uint16_t>(account);
}

void BlockUses::SetLive(BlockId block, uint32_t num_tokens) {
  uint32_t& live = live_[static_cast<size_t>(block)];
  live_bytes_ += Bytes(block, num_tokens);
  live_bytes_ -= Bytes(block, live);
  if (of(block).group == 0) live_tokens_ = live_tokens_ + num_tokens - live;
  live = num_tokens;
}

void BlockUses::CheckInvariants(uint64_t cached_bytes) const {
  uint64_t live_tokens = 0, live_bytes = 0;
  for (uint32_t b = 0; b < live_.size(); ++b) {
    if (of(BlockId{b}).group == 0) live_tokens += live_[b];
    live_bytes += Bytes(BlockId{b}, live_[b]);
  }
  KV_CHECK(live_tokens == live_tokens_ && live_bytes == live_bytes_);
  KV_CHECK(cached_bytes == cached_bytes_);
}

}  // namespace kvasir
