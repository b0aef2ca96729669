#include "policy/lru.h"

namespace kvasir {

uint64_t Lru::BytesFor(const EvictionLimits& limits) { return EvictionQueue::BytesFor(limits, 1); }

Lru::Lru(const EvictionLimits& limits) : queue_(limits, 1) {}

void Lru::OnInserted(BlockId, const BlockFacts&) {}

void Lru::OnEvictable(BlockId id, const BlockFacts& facts) {
  queue_.Insert(id, 0, facts.ns, facts.group, facts.last_use);
}

void Lru::OnHeld(BlockId id) { queue_.Remove(id); }

void Lru::OnEvicted(BlockId id) { queue_.Remove(id); }

void Lru::OnForgotten(BlockId id) {
  if (queue_.contains(id)) queue_.Remove(id);
}

std::optional<BlockId> Lru::Victim(const EvictionScope& scope) { return queue_.First(0, scope); }

}  // namespace kvasir
