// What must hold between pool, index, policy and accounts.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "cache/residency.h"
#include "cache/source_key.h"

namespace kvasir {

void Residency::CheckInvariants() const {
  const auto& [layout, pool, index, policy, cursors, uses, owners, accounts, namespaces, counters,
               sealer, events] = parts_;
  uint64_t cached_bytes = 0;
  uint64_t num_cross = 0, num_of_sources = 0;  // blocks of `cross` groups in nodes
  std::vector<KvAccounts::Account> counted(accounts.size());
  for (uint32_t b = 0; b < pool.num_blocks(); ++b) {
    const BlockId id{b};
    KvAccounts::Account& account = counted[uses.of(id).account];
    const uint32_t pins = pool.pin_count(id);
    account.pinned += pins > 0;
    account.idle += pins == 0 && pool.retained(id);
    if (pins > 0 && uses.kind(id).reach.window > 0) account.extra_pins += pins - 1;
    const auto node = index.node_of(id);
    KV_CHECK(pool.retained(id) == node.has_value());
    const bool full = uses.group(id) < layout.num_full_groups();
    const bool goes_first = node && (!full || !index.has_children(*node));
    const bool evictable = pins == 0 && uses.stands_for_kind(id) && goes_first;
    KV_CHECK(policy.is_evictable(id) == evictable);
    // Live tokens are in exactly the blocks that are pinned and in no node.
    KV_CHECK((uses.live(id) > 0) == (pins > 0 && !node));
#if !defined(__SANITIZE_ADDRESS__)  // the bytes of free blocks are poisoned there
    // Zeroed after a Forget. Those that were never taken stay untouched.
    if (!owners.is_known(id) && uses.of(id).last > 0) {
      const std::span bytes(pool.data(id), layout.block_bytes());
      KV_CHECK(std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; }));
    }
#endif
    if (!node) continue;
    cached_bytes += CheckNode(*node, id);
    if (uses.group(id) < layout.num_own_groups()) continue;
    ++num_cross;
    if (uses.stands_for_kind(id)) num_of_sources += CheckSource(*node);
  }
  KV_CHECK(num_cross == num_of_sources);
  uses.CheckInvariants(cached_bytes);
  owners.CheckInvariants();
  accounts.CheckInvariants();
  for (size_t i = 0; i < counted.size(); ++i) {
    const KvAccounts::Account& account = accounts.of(AccountId(i));
    KV_CHECK(account.pinned == counted[i].pinned && account.idle == counted[i].idle);
    KV_CHECK(account.extra_pins == counted[i].extra_pins);
  }
  for (const NodeId parent : cursors.Parents()) {
    KV_CHECK(PrefixIndex::is_root(parent) || index.tokens(parent).size() == layout.block_tokens());
  }
}

// Checks a node that holds `block`, and returns the bytes of the block's tokens.
uint64_t Residency::CheckNode(NodeId node, BlockId block) const {
  const KvLayout& layout = parts_.layout;
  const PrefixIndex& index = parts_.index;
  const BlockPool& pool = parts_.pool;
  const uint32_t group = parts_.uses.group(block);
  const KvKind& kind = parts_.uses.kind(block);
  KV_CHECK(index.block(node, group) == block);
  for (uint32_t i = 0; i < kind.num_groups; ++i) {
    const auto other = index.block(node, kind.first_group + i);
    KV_CHECK(other && pool.pin_count(*other) == pool.pin_count(block));
  }
  const uint64_t bytes =
      TokensIn(node, *index.block(node, kind.first_group)) * layout.token_bytes(group);
  if (group >= layout.num_own_groups()) return bytes;
  for (uint32_t i = 0; i < layout.num_full_groups(); ++i) KV_CHECK(index.block(node, i));
  for (uint32_t i = layout.num_own_groups(); i < layout.num_groups(); ++i) {
    KV_CHECK(!index.block(node, i));
  }
  const bool full = group < layout.num_full_groups();
  const NodeId parent = index.parent(node);
  if (!full || pool.pin_count(block) == 0 || PrefixIndex::is_root(parent)) return bytes;
  const auto before = index.block(parent, group);  // none: the parent is a source's last node
  KV_CHECK(before ? pool.pin_count(*before) > 0 : IsOfSource(parent));
  return bytes;
}

// Returns whether a node is one of a source: the first node of its prompt begins with the mark, and
// it is not below the source's last one.
bool Residency::IsOfSource(NodeId node) const {
  NodeId first = node;
  while (!PrefixIndex::is_root(parts_.index.parent(first))) first = parts_.index.parent(first);
  return SourceKey::IsFirstNode(parts_.index.tokens(first)) &&
         parts_.index.depth(node) <= SourceKey::NumNodes(parts_.index.tokens(first));
}

// Checks that all blocks of the source whose last node is `last` are in its nodes, idle or pinned
// together; returns their number.
uint64_t Residency::CheckSource(NodeId last) const {
  const KvKind& kind = parts_.layout.kinds().back();
  const uint32_t pins = parts_.pool.pin_count(*parts_.index.block(last, kind.first_group));
  const uint64_t blocks =
      parts_.layout.SourceBlocks(SourceKey::TokensOf(parts_.index.tokens(last)));
  NodeId node = last;
  for (uint64_t i = 0; i < blocks; i += kind.num_groups) {
    KV_CHECK(IsOfSource(node));
    for (uint32_t group = kind.first_group; group < parts_.layout.num_groups(); ++group) {
      const auto block = parts_.index.block(node, group);
      KV_CHECK(block && parts_.pool.pin_count(*block) == pins);
    }
    node = parts_.index.parent(node);
  }
  return blocks;
}

}  // namespace kvasir
