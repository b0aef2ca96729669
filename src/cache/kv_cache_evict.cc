// How blocks leave KvCache: evictions, calls of the policy.
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "cache/cursor_store.h"
#include "cache/kv_cache.h"

namespace kvasir {

// False when there is no such idle block.
bool KvCache::EvictOne(AccountId taker, Victims victims) {
  EvictionScope scope;
  if (victims == Victims::kOwn || accounts_.has_quotas()) {
    scope_.clear();
    for (size_t i = 1; i < namespaces_.size(); ++i) {
      const AccountId account = Of(NamespaceId(i)).account;
      if (account == taker || (victims == Victims::kAny && accounts_.may_lose(account))) {
        scope_.push_back(NamespaceId(i));
      }
    }
    scope.namespaces = scope_;
  }
  const auto victim = policy_->Victim(scope);
  if (!victim) return false;
  evicts_for_quota_ = accounts_.has_quotas() && victims == Victims::kOwn;
  const NodeId node = *index_->node_of(*victim);
  const KvKind& kind = uses_.kind(*victim);
  if (kind.reach.kind == KvReach::Kind::kFull) {
    Unlink(node, PrefixIndex::RemoveKind::kEvicted);
  } else if (kind.reach.kind == KvReach::Kind::kCross) {
    EvictSource(node);
  } else {
    Detach(node, kind, PrefixIndex::RemoveKind::kEvicted);
    Prune(node);
  }
  return true;
}

AccountId KvCache::MakeAccount(std::string_view owner) {
  const AccountId account = OpenAccount(owner);
  if (account != kNobody) return account;
  std::optional<AccountId> fewest;
  for (size_t i = 1; i < accounts_.size(); ++i) {
    const KvAccounts::Account& other = accounts_.of(AccountId(i));
    if (other.used() > 0 || other.quota != KvQuota{}) continue;
    if (!fewest || other.idle < accounts_.of(*fewest).idle) fewest = AccountId(i);
  }
  if (!fewest) return kNobody;
  while (accounts_.of(*fewest).idle > 0 && EvictOne(*fewest, Victims::kOwn)) {
  }
  return OpenAccount(owner);
}

void KvCache::SetQuota(AccountId account, const KvQuota& quota) {
  accounts_.SetQuota(account, quota);
  while (accounts_.of(account).held() > quota.max && EvictOne(account, Victims::kOwn)) {
  }
}

// Removes a leaf from the index. Its blocks become free, or belong only to the sequences that pin
// them. Its parent may then be a leaf that can be evicted.
void KvCache::Unlink(NodeId node, PrefixIndex::RemoveKind kind) {
  const NodeId parent = index_->parent(node);
  for (const KvKind& each : layout().kinds()) {
    if (index_->block(node, each.first_group)) Detach(node, each, kind);
  }
  cursors_->Drop(node);
  index_->Remove(node, kind);
  if (PrefixIndex::is_root(parent)) return;
  // A model of windows alone, or the last node of a source.
  const auto block = index_->block(parent, 0);
  if (layout().num_full_groups() == 0 || !block) return Prune(parent);
  if (pool_->pin_count(*block) == 0) OfferIfEvictable(parent, *block);
}

// Takes the node's blocks of a kind out of the index.
void KvCache::Detach(NodeId node, const KvKind& kind, PrefixIndex::RemoveKind remove) {
  const uint32_t num_tokens = TokensIn(node, *index_->block(node, kind.first_group));
  for (uint32_t i = 0; i < kind.num_groups; ++i) {
    const BlockId block = *index_->block(node, kind.first_group + i);
    if (tier_ != nullptr && remove == PrefixIndex::RemoveKind::kEvicted) SealLeaving(block);
    if (tier_ != nullptr) writes_->Remove(block);
    index_->ClearBlock(node, kind.first_group + i);
    LetGo(block, num_tokens, remove);
  }
}

// Removes the node if it is bare, and then each bare node above it.
void KvCache::Prune(NodeId node) {
  while (!PrefixIndex::is_root(node) && index_->is_bare(node)) {
    const NodeId parent = index_->parent(node);
    cursors_->Drop(node);
    index_->Remove(node, PrefixIndex::RemoveKind::kEvicted);
    node = parent;
  }
}

// Accounts for `block`, which has num_tokens tokens and left the index.
void KvCache::LetGo(BlockId block, uint32_t num_tokens, PrefixIndex::RemoveKind kind) {
  uses_.SubtractCached(block, num_tokens);
  const bool known = uses_.stands_for_kind(block);
  if (pool_->pin_count(block) > 0) {
    if (known) policy_->OnForgotten(block);
    pool_->Unretain(block);
    uses_.SetLive(block, num_tokens);
    return;
  }
  const bool evicted = kind == PrefixIndex::RemoveKind::kEvicted;
  if (evicted) {
    counters_.CountEvicted(num_tokens, owners_.of(block) == taker_, evicts_for_quota_);
  }
  if (known && evicted) policy_->OnEvicted(block);
  if (known && !evicted) policy_->OnForgotten(block);
  pool_->Reclaim(block);
  accounts_.OnReclaimed(uses_.account(block));
}

BlockFacts KvCache::FactsOf(NodeId node, BlockId block) const {
  const BlockUses::Use& use = uses_.of(block);
  const KvKind& kind = uses_.kind(block);
  const uint64_t num_blocks = kind.reach.kind == KvReach::Kind::kCross
                                  ? layout().SourceBlocks(SourceKey::TokensOf(index_->tokens(node)))
                                  : kind.num_groups;
  return {.ns = owners_.of(block),
          .group = LayerGroupId{layout().kind_of(use.group)},
          .depth = index_->depth(node),
          .bytes = num_blocks * layout().block_bytes(),
          .hits = use.hits,
          .last_use = use.last,
          .content = index_->content(node)};
}

// REQUIRES: the block is idle, and the policy knows it (StandsForKind).
void KvCache::OfferIfEvictable(NodeId node, BlockId block) {
  const bool full = uses_.kind(block).reach.kind == KvReach::Kind::kFull;
  if (!full || !index_->has_children(node)) policy_->OnEvictable(block, FactsOf(node, block));
}

void KvCache::OnIdle(BlockId id) {
  accounts_.OnIdle(uses_.account(id));
  uses_.Touch(id);
  if (uses_.stands_for_kind(id)) OfferIfEvictable(*index_->node_of(id), id);
}
void KvCache::OnPinned(BlockId id) {
  accounts_.OnPinned(uses_.account(id));
  if (policy_->is_evictable(id)) policy_->OnHeld(id);
}
void KvCache::OnFreed(BlockId id) {
  accounts_.OnFreed(uses_.account(id));
  uses_.SetLive(id, 0);
}
void KvCache::OnExtraPin(BlockId id, int change) {
  accounts_.OnExtraPins(uses_.account(id), change);
}

}  // namespace kvasir
