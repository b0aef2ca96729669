#include "cache/residency.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "cache/source_key.h"

namespace kvasir {

using RemoveKind = PrefixIndex::RemoveKind;

Residency::Residency(const Parts& parts, uint32_t num_namespaces) : parts_(parts) {
  scope_.reserve(size_t{num_namespaces} + 1);
  parts_.pool.set_observer(this);
}

BlockRef Residency::Take(NamespaceId ns, AccountId account, uint32_t group) {
  // A sequence that pins a block pins all before it. So all blocks below an idle block are idle,
  // one of them is a leaf, and EvictOne finds it.
  TakeFor(ns);
  if (parts_.accounts.must_take_own(account)) EvictOne(account, Victims::kOwn);
  if (parts_.pool.num_free() == 0) KV_CHECK(EvictOne(account, Victims::kAny));
  const KvKind& kind = parts_.layout.kinds()[parts_.layout.kind_of(group)];
  using enum BlockPool::PinKind;
  BlockRef block = parts_.pool.Allocate(kind.reach.window > 0 ? kUnshareable : kShared);
  parts_.uses.Take(block.id(), group, account);
  parts_.accounts.OnAllocated(account);
  parts_.owners.Take(block, taker_);
  return block;
}

bool Residency::EvictOne(AccountId taker, Victims victims) {
  const KvAccounts& accounts = parts_.accounts;
  EvictionScope scope;
  if (victims == Victims::kOwn || accounts.has_quotas()) {
    scope_.clear();
    for (size_t i = 1; i < parts_.namespaces.size(); ++i) {
      const AccountId account = parts_.namespaces.Of(NamespaceId(i)).account;
      if (account == taker || (victims == Victims::kAny && accounts.may_lose(account))) {
        scope_.push_back(NamespaceId(i));
      }
    }
    scope.namespaces = scope_;
  }
  const auto victim = parts_.policy.Victim(scope);
  if (!victim) return false;
  evicts_for_quota_ = accounts.has_quotas() && victims == Victims::kOwn;
  const NodeId node = *parts_.index.node_of(*victim);
  const KvKind& kind = parts_.uses.kind(*victim);
  if (kind.reach.kind == KvReach::Kind::kFull) {
    Unlink(node, RemoveKind::kEvicted);
  } else if (kind.reach.kind == KvReach::Kind::kCross) {
    EvictSource(node);
  } else {
    Detach(node, kind, RemoveKind::kEvicted);
    Prune(node);
  }
  return true;
}

void Residency::Enter(NodeId node, const KvKind& kind, std::span<const BlockTable> tables,
                      uint32_t block_index) {
  const auto block_of = [&](uint32_t group) { return tables[group].ref(block_index).id(); };
  const uint32_t num_tokens = TokensIn(node, block_of(kind.first_group));
  for (uint32_t group = kind.first_group; group < kind.first_group + kind.num_groups; ++group) {
    const BlockId block = block_of(group);
    parts_.uses.SetLive(block, 0);
    parts_.uses.Renew(block);
    parts_.index.SetBlock(node, group, block);
    parts_.uses.AddCached(block, num_tokens);
    if (parts_.uses.stands_for_kind(block)) {
      parts_.policy.OnInserted(block, FactsOf(node, block));
    }
    parts_.pool.Retain(block);
  }
  if (Publishes(kind)) parts_.events->OnStored(parts_.index, node);
}

void Residency::Unlink(NodeId node, RemoveKind kind) {
  const NodeId parent = parts_.index.parent(node);
  for (const KvKind& each : parts_.layout.kinds()) {
    if (parts_.index.block(node, each.first_group)) Detach(node, each, kind);
  }
  parts_.cursors.Drop(node);
  parts_.index.Remove(node, kind);
  if (PrefixIndex::is_root(parent)) return;
  // A model of windows alone, or the last node of a source.
  const auto block = parts_.index.block(parent, 0);
  if (parts_.layout.num_full_groups() == 0 || !block) return Prune(parent);
  if (parts_.pool.pin_count(*block) == 0) OfferIfEvictable(parent, *block);
}

void Residency::Detach(NodeId node, const KvKind& kind, RemoveKind remove) {
  const uint32_t num_tokens = TokensIn(node, *parts_.index.block(node, kind.first_group));
  // Before a block is free: then the event is there before another one can have its place.
  if (Publishes(kind)) parts_.events->OnRemoved(parts_.index, node);
  for (uint32_t group = kind.first_group; group < kind.first_group + kind.num_groups; ++group) {
    const BlockId block = *parts_.index.block(node, group);
    if (parts_.sealer != nullptr) parts_.sealer->Remove(block, remove == RemoveKind::kEvicted);
    parts_.index.ClearBlock(node, group);
    LetGo(block, num_tokens, remove);
  }
}

void Residency::Prune(NodeId node) {
  while (!PrefixIndex::is_root(node) && parts_.index.is_bare(node)) {
    const NodeId parent = parts_.index.parent(node);
    parts_.cursors.Drop(node);
    parts_.index.Remove(node, RemoveKind::kEvicted);
    node = parent;
  }
}

// Takes all blocks of a source, whose last node is `last`, out of the index.
void Residency::EvictSource(NodeId last) {
  const KvKind& kind = parts_.layout.kinds().back();
  NodeId node = last;
  const uint32_t tokens = SourceKey::TokensOf(parts_.index.tokens(last));
  for (uint64_t b = CeilDiv(tokens, parts_.layout.block_tokens()); b > 0; --b) {
    Detach(node, kind, RemoveKind::kEvicted);
    node = parts_.index.parent(node);
  }
  Prune(last);
}

// Accounts for `block`, which has num_tokens tokens and left the index.
void Residency::LetGo(BlockId block, uint32_t num_tokens, RemoveKind kind) {
  parts_.uses.SubtractCached(block, num_tokens);
  const bool known = parts_.uses.stands_for_kind(block);
  if (parts_.pool.pin_count(block) > 0) {
    if (known) parts_.policy.OnForgotten(block);
    parts_.pool.Unretain(block);
    parts_.uses.SetLive(block, num_tokens);
    return;
  }
  const bool evicted = kind == RemoveKind::kEvicted;
  if (evicted) {
    parts_.counters.CountEvicted(num_tokens, parts_.owners.of(block) == taker_, evicts_for_quota_);
  }
  if (known && evicted) parts_.policy.OnEvicted(block);
  if (known && !evicted) parts_.policy.OnForgotten(block);
  parts_.pool.Reclaim(block);
  parts_.accounts.OnReclaimed(parts_.uses.account(block));
}

BlockFacts Residency::FactsOf(NodeId node, BlockId block) const {
  const BlockUses::Use& use = parts_.uses.of(block);
  const KvKind& kind = parts_.uses.kind(block);
  const uint64_t num_blocks =
      kind.reach.kind == KvReach::Kind::kCross
          ? parts_.layout.SourceBlocks(SourceKey::TokensOf(parts_.index.tokens(node)))
          : kind.num_groups;
  return {.ns = parts_.owners.of(block),
          .group = LayerGroupId{parts_.layout.kind_of(use.group)},
          .depth = parts_.index.depth(node),
          .bytes = num_blocks * parts_.layout.block_bytes(),
          .hits = use.hits,
          .last_use = use.last,
          .content = parts_.index.content(node)};
}

// REQUIRES: the block is idle, and the policy knows it (BlockUses::stands_for_kind).
void Residency::OfferIfEvictable(NodeId node, BlockId block) {
  const bool full = parts_.uses.kind(block).reach.kind == KvReach::Kind::kFull;
  if (!full || !parts_.index.has_children(node)) {
    parts_.policy.OnEvictable(block, FactsOf(node, block));
  }
}

void Residency::OnIdle(BlockId id) {
  parts_.accounts.OnIdle(parts_.uses.account(id));
  parts_.uses.Touch(id);
  if (parts_.uses.stands_for_kind(id)) OfferIfEvictable(*parts_.index.node_of(id), id);
}
void Residency::OnPinned(BlockId id) {
  parts_.accounts.OnPinned(parts_.uses.account(id));
  if (parts_.policy.is_evictable(id)) parts_.policy.OnHeld(id);
}
void Residency::OnFreed(BlockId id) {
  parts_.accounts.OnFreed(parts_.uses.account(id));
  parts_.uses.SetLive(id, 0);
}
void Residency::OnExtraPin(BlockId id, int change) {
  parts_.accounts.OnExtraPins(parts_.uses.account(id), change);
}

uint32_t Residency::TokensIn(NodeId node, BlockId first) const {
  const auto ids = parts_.index.tokens(node);
  const auto all = static_cast<uint32_t>(ids.size());
  const bool ends_source = parts_.uses.kind(first).reach.kind == KvReach::Kind::kCross &&
                           parts_.uses.stands_for_kind(first);
  return ends_source ? (SourceKey::TokensOf(ids) - 1) % all + 1 : all;
}

}  // namespace kvasir
