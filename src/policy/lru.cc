#include "policy/lru.h"

#include "base/check.h"

namespace kvasir {

uint64_t Lru::BytesFor(uint32_t num_blocks) { return (uint64_t{num_blocks} + 1) * sizeof(Link); }

Lru::Lru(uint32_t num_blocks)
    : num_blocks_(num_blocks), links_(size_t{num_blocks} + 1, Link{kNotIdle, kNotIdle}) {
  links_[num_blocks] = {num_blocks, num_blocks};
}

void Lru::OnIdle(BlockId id) {
  const auto index = static_cast<uint32_t>(id);
  KV_CHECK(index < num_blocks_ && links_[index].older == kNotIdle);
  const uint32_t newest = links_[num_blocks_].older;
  links_[index] = {.older = newest, .newer = num_blocks_};
  links_[newest].newer = index;
  links_[num_blocks_].older = index;
  ++num_idle_;
}

void Lru::OnBusy(BlockId id) {
  const auto index = static_cast<uint32_t>(id);
  KV_CHECK(index < num_blocks_ && links_[index].older != kNotIdle);
  const Link link = links_[index];
  links_[link.older].newer = link.newer;
  links_[link.newer].older = link.older;
  links_[index] = {kNotIdle, kNotIdle};
  --num_idle_;
}

std::optional<BlockId> Lru::Victim(const std::function<bool(BlockId)>& evictable) const {
  for (uint32_t i = links_[num_blocks_].newer; i != num_blocks_; i = links_[i].newer) {
    if (evictable(BlockId{i})) return BlockId{i};
  }
  return std::nullopt;
}

uint64_t Lru::allocated_bytes() const { return links_.capacity() * sizeof(Link); }

void Lru::CheckInvariants() const {
  uint32_t listed = 0;
  uint32_t older = num_blocks_;
  for (uint32_t i = links_[num_blocks_].newer; i != num_blocks_; i = links_[i].newer) {
    KV_CHECK(i < num_blocks_ && links_[i].older == older && ++listed <= num_idle_);
    older = i;
  }
  KV_CHECK(links_[num_blocks_].older == older && listed == num_idle_);
  uint32_t linked = 0;
  for (uint32_t i = 0; i < num_blocks_; ++i) linked += links_[i].older != kNotIdle;
  KV_CHECK(linked == num_idle_);
}

}  // namespace kvasir
