#include "index/prefix_index.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/fault.h"
#include "base/random.h"
#include "base/treap.h"

namespace kvasir {
namespace {

// Returns a size that is at most half full, so that a probe usually touches one cache line.
uint64_t TableSize(uint32_t num_nodes) { return std::bit_ceil(uint64_t{num_nodes} * 2); }
uint64_t GhostSize(uint32_t num_nodes) { return std::bit_ceil(uint64_t{num_nodes}); }

// Folds a 128-bit product (as in wyhash).
uint64_t Fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint32_t CommonPrefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  const size_t n = std::min(a.size(), b.size());
  size_t i = 0;
  while (i < n && a[i] == b[i]) ++i;
  return static_cast<uint32_t>(i);
}

}  // namespace

uint64_t PrefixIndex::BytesFor(const Options& o) {
  const uint64_t node_bytes = sizeof(Node) + o.block_tokens * sizeof(TokenId) + sizeof(BlockKey) +
                              (o.num_groups + 1) * sizeof(uint32_t) /* blocks_, free_stack_ */;
  return uint64_t{o.num_roots} * sizeof(Root) + o.num_nodes * node_bytes +
         uint64_t{o.num_blocks} * sizeof(uint32_t) + TableSize(o.num_nodes) * sizeof(uint32_t) +
         GhostSize(o.num_nodes) * sizeof(uint64_t);
}

uint64_t PrefixIndex::allocated_bytes() const {
  return roots_.capacity() * sizeof(Root) + nodes_.capacity() * sizeof(Node) +
         tokens_.capacity() * sizeof(TokenId) + keys_.capacity() * sizeof(BlockKey) +
         (blocks_.capacity() + free_stack_.capacity() + node_of_block_.capacity() +
          table_.capacity()) *
             sizeof(uint32_t) +
         ghosts_.capacity() * sizeof(uint64_t);
}

PrefixIndex::PrefixIndex(const Options& options)
    : block_tokens_(options.block_tokens),
      seed_(options.seed),
      hash_mask_(options.hash_mask),
      num_roots_(options.num_roots),
      num_groups_(options.num_groups),
      nodes_(options.num_nodes),
      tokens_(size_t{options.num_nodes} * options.block_tokens),
      keys_(options.num_nodes),
      blocks_(size_t{options.num_nodes} * options.num_groups, kNone),
      free_stack_(options.num_nodes),
      node_of_block_(options.num_blocks, kNone),
      table_(TableSize(options.num_nodes), kNone),
      ghosts_(GhostSize(options.num_nodes)) {
  KV_CHECK(options.num_nodes > 0 && options.num_nodes < kRootBit && block_tokens_ > 0);
  KV_CHECK(num_groups_ > 0);
  roots_.reserve(num_roots_);
  for (uint32_t i = 0; i < options.num_nodes; ++i) free_stack_[i] = options.num_nodes - 1 - i;
}

NodeId PrefixIndex::AddRoot(const BlockKey& root_key) {
  KV_CHECK(roots_.size() < num_roots_);
  roots_.push_back(RootOf(root_key));
  return NodeId{kRootBit | static_cast<uint32_t>(roots_.size() - 1)};
}

void PrefixIndex::RenewRoot(NodeId root, const BlockKey& root_key) {
  KV_CHECK(is_root(root) && !has_children(root));
  Root& entry = roots_[Raw(root) & ~kRootBit];
  const uint64_t before = entry.hash;
  entry = RootOf(root_key);
  entry.hash = Mix64(entry.hash ^ before);
}

PrefixIndex::Root PrefixIndex::RootOf(const BlockKey& root_key) const {
  uint64_t hash;
  std::memcpy(&hash, root_key.data(), sizeof(hash));
  return Root{root_key, HmacKey(root_key), Mix64(hash ^ seed_)};
}

uint32_t PrefixIndex::ChildrenOf(uint32_t parent) const {
  return (parent & kRootBit) != 0 ? roots_[parent & ~kRootBit].children : nodes_[parent].children;
}
uint32_t* PrefixIndex::ChildrenOf(uint32_t parent) {
  return (parent & kRootBit) != 0 ? &roots_[parent & ~kRootBit].children : &nodes_[parent].children;
}
bool PrefixIndex::has_children(NodeId node) const { return ChildrenOf(Raw(node)) != kNone; }

const BlockKey& PrefixIndex::key(NodeId node) const {
  if (is_root(node)) return roots_[Raw(node) & ~kRootBit].key;
  KV_DCHECK(At(node).num_tokens == block_tokens_);
  return keys_[Raw(node)];
}

uint64_t PrefixIndex::HashOf(NodeId parent, std::span<const TokenId> tokens) const {
  uint64_t hash = is_root(parent) ? roots_[Raw(parent) & ~kRootBit].hash : At(parent).hash;
  size_t i = 0;
  for (; i + 2 <= tokens.size(); i += 2) {
    uint64_t pair;
    std::memcpy(&pair, &tokens[i], sizeof(pair));
    hash = Fold(hash ^ pair, seed_ | 1) + pair;
  }
  if (i < tokens.size()) hash = Fold(hash ^ static_cast<uint32_t>(tokens[i]), seed_ | 1);
  return Mix64(hash ^ tokens.size()) & hash_mask_;
}

uint64_t PrefixIndex::Priority(uint32_t node) const { return Mix64(seed_ ^ node); }

bool PrefixIndex::TokensEqual(uint32_t node, std::span<const TokenId> tokens) const {
  return nodes_[node].num_tokens == tokens.size() &&
         std::memcmp(TokensOf(node), tokens.data(), tokens.size_bytes()) == 0;
}

bool PrefixIndex::Less(std::span<const TokenId> tokens, uint32_t node) const {
  return std::ranges::lexicographical_compare(tokens, this->tokens(NodeId{node}));
}

std::optional<NodeId> PrefixIndex::FindChild(NodeId parent, std::span<const TokenId> tokens) const {
  KV_DCHECK(tokens.size() == block_tokens_);
  const uint32_t first = ChildrenOf(Raw(parent));
  if (first == kNone) return std::nullopt;
  // Most nodes have one child. Comparing it needs no look-up in the table, and the nodes of a
  // prompt were written one after another.
  if (TokensEqual(first, tokens)) return NodeId{first};
  if (FaultActive(Fault::kSkippedCompare) && nodes_[first].num_tokens == block_tokens_) {
    return NodeId{first};
  }
  if (nodes_[first].left == kNone && nodes_[first].right == kNone) return std::nullopt;
  const uint64_t hash = HashOf(parent, tokens);
  const uint64_t mask = table_.size() - 1;
  for (uint64_t slot = hash & mask; table_[slot] != kNone; slot = (slot + 1) & mask) {
    const Node& node = nodes_[table_[slot]];
    if (node.hash == hash && node.parent == Raw(parent) && TokensEqual(table_[slot], tokens)) {
      return NodeId{table_[slot]};
    }
  }
  return std::nullopt;
}

std::optional<PrefixIndex::Partial> PrefixIndex::BestPartial(
    NodeId parent, std::span<const TokenId> tokens) const {
  KV_DCHECK(!tokens.empty() && tokens.size() <= block_tokens_);
  std::optional<Partial> best;
  uint32_t node = ChildrenOf(Raw(parent));
  while (node != kNone) {
    const auto theirs = this->tokens(NodeId{node});
    const uint32_t common = CommonPrefix(tokens, theirs);
    if (!best || common > best->num_equal) best = Partial{NodeId{node}, common};
    if (common == tokens.size() || common == theirs.size()) break;  // no child can have more
    node = tokens[common] < theirs[common] ? nodes_[node].left : nodes_[node].right;
  }
  return best;
}

void PrefixIndex::AddChildrenWith(NodeId parent, std::span<const TokenId> tokens,
                                  std::vector<NodeId>* found) const {
  std::vector<uint32_t> path;
  // Whether the children before this node, or after it, may begin with `tokens` too: the node's
  // first tokens against them, < 0, 0 or > 0.
  const auto compare = [&](uint32_t node) {
    if (tokens.empty()) return 0;
    const auto theirs = this->tokens(NodeId{node});
    const auto first = theirs.first(std::min(theirs.size(), tokens.size()));
    const auto order = std::lexicographical_compare_three_way(first.begin(), first.end(),
                                                              tokens.begin(), tokens.end());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  };
  uint32_t node = ChildrenOf(Raw(parent));
  while (node != kNone || !path.empty()) {
    while (node != kNone) {
      if (compare(node) < 0) {
        node = nodes_[node].right;
        continue;
      }
      path.push_back(node);
      node = nodes_[node].left;
    }
    if (path.empty()) break;
    node = path.back();
    path.pop_back();
    if (compare(node) > 0) break;  // so are all after it
    found->push_back(NodeId{node});
    node = nodes_[node].right;
  }
}

bool PrefixIndex::WasEvicted(NodeId parent, std::span<const TokenId> tokens,
                             uint32_t num_tokens) const {
  for (size_t n = num_tokens + 1; n <= tokens.size(); ++n) {
    const uint64_t hash = HashOf(parent, tokens.first(n));
    if (hash != 0 && ghosts_[hash & (ghosts_.size() - 1)] == hash) return true;
  }
  return false;
}

bool PrefixIndex::is_bare(NodeId node) const {
  const Node& at = At(node);
  if (at.holds > 0 || at.children != kNone) return false;
  const uint32_t* blocks = &blocks_[size_t{Raw(node)} * num_groups_];
  return std::all_of(blocks, blocks + num_groups_, [](uint32_t block) { return block == kNone; });
}

void PrefixIndex::SetBlock(NodeId node, uint32_t group, BlockId block) {
  KV_CHECK(!is_root(node) && At(node).num_tokens > 0 && !node_of(block));
  uint32_t& slot = blocks_[size_t{Raw(node)} * num_groups_ + group];
  KV_CHECK(slot == kNone);
  slot = static_cast<uint32_t>(block);
  node_of_block_[slot] = Raw(node);
  ++num_blocks_;
}

void PrefixIndex::ClearBlock(NodeId node, uint32_t group) {
  uint32_t& slot = blocks_[size_t{Raw(node)} * num_groups_ + group];
  KV_CHECK(slot != kNone);
  node_of_block_[slot] = kNone;
  slot = kNone;
  --num_blocks_;
}

NodeId PrefixIndex::Insert(NodeId parent, std::span<const TokenId> tokens) {
  KV_CHECK(!tokens.empty() && tokens.size() <= block_tokens_);
  KV_CHECK(num_nodes_ < nodes_.size());
  KV_CHECK(is_root(parent) || At(parent).num_tokens == block_tokens_);
  const uint32_t id = free_stack_[nodes_.size() - 1 - num_nodes_++];
  const uint32_t root = is_root(parent) ? Raw(parent) : At(parent).root;
  nodes_[id] = Node{.hash = HashOf(parent, tokens),
                    .parent = Raw(parent),
                    .root = root,
                    .holds = 0,
                    .children = kNone,
                    .left = kNone,
                    .right = kNone,
                    .depth = depth(parent) + 1,
                    .num_tokens = static_cast<uint16_t>(tokens.size()),
                    .hits = 0};
  std::ranges::copy(tokens, &tokens_[size_t{id} * block_tokens_]);
  num_tokens_ += tokens.size();
  if (tokens.size() == block_tokens_) {
    keys_[id] = ChildKey(roots_[root & ~kRootBit].hmac, key(parent), tokens);
    TableInsert(id);
  }
  uint64_t& ghost = ghosts_[nodes_[id].hash & (ghosts_.size() - 1)];
  if (ghost == nodes_[id].hash) ghost = 0;

  uint32_t* link = ChildrenOf(Raw(parent));
  while (*link != kNone && Priority(*link) > Priority(id)) {
    link = Less(tokens, *link) ? &nodes_[*link].left : &nodes_[*link].right;
  }
  const auto comes_after = [&](uint32_t other) { return Less(tokens, other); };
  SplitTreap(nodes_, *link, comes_after, &nodes_[id].left, &nodes_[id].right);
  *link = id;
  return NodeId{id};
}

void PrefixIndex::Remove(NodeId node, RemoveKind kind) {
  const uint32_t id = Raw(node);
  KV_CHECK(!is_root(node) && nodes_[id].num_tokens > 0 && nodes_[id].children == kNone);
  uint32_t* link = ChildrenOf(nodes_[id].parent);
  while (*link != id) {
    link = Less(tokens(node), *link) ? &nodes_[*link].left : &nodes_[*link].right;
  }
  *link = MergeTreaps(nodes_, nodes_[id].left, nodes_[id].right,
                      [this](uint32_t one) { return Priority(one); });
  if (kind == RemoveKind::kEvicted) {
    ghosts_[nodes_[id].hash & (ghosts_.size() - 1)] = nodes_[id].hash;
  }
  FreeNode(id);
}

void PrefixIndex::Clear(NodeId root, const std::function<void(NodeId)>& leaving) {
  for (uint32_t id = 0; id < nodes_.size(); ++id) {
    if (nodes_[id].root != Raw(root)) continue;
    const uint32_t holds = std::exchange(nodes_[id].holds, 0);  // they are stale from now on
    if (nodes_[id].num_tokens > 0) {
      leaving(NodeId{id});
      FreeNode(id);
    } else if (holds > 0) {
      free_stack_[nodes_.size() - num_nodes_--] = id;
    }
  }
  Root& entry = roots_[Raw(root) & ~kRootBit];
  entry.children = kNone;
  entry.hash = Mix64(entry.hash);  // so WasEvicted recognises none of them
}

void PrefixIndex::FreeNode(uint32_t node) {
  if (nodes_[node].num_tokens == block_tokens_) TableRemove(node);
  for (uint32_t group = 0; group < num_groups_; ++group) {
    if (block(NodeId{node}, group)) ClearBlock(NodeId{node}, group);
  }
  num_tokens_ -= nodes_[node].num_tokens;
  nodes_[node].num_tokens = 0;
  // No token of an erased prompt stays in memory.
  std::fill_n(&tokens_[size_t{node} * block_tokens_], block_tokens_, 0);
  keys_[node] = {};
  if (nodes_[node].holds > 0) return;  // its last Unhold frees the place
  free_stack_[nodes_.size() - num_nodes_--] = node;
}

void PrefixIndex::Unhold(NodeId node) {
  Node& at = nodes_[Raw(node)];
  if (--at.holds == 0 && at.num_tokens == 0) free_stack_[nodes_.size() - num_nodes_--] = Raw(node);
}

void PrefixIndex::TableInsert(uint32_t node) {
  const uint64_t mask = table_.size() - 1;
  uint64_t slot = nodes_[node].hash & mask;
  while (table_[slot] != kNone) slot = (slot + 1) & mask;
  table_[slot] = node;
}

// Closes the gap of linear probing without tombstones: entries after it move up unless that would
// put them before their home (Knuth, vol. 3, 6.4, algorithm R).
void PrefixIndex::TableRemove(uint32_t node) {
  const uint64_t mask = table_.size() - 1;
  uint64_t gap = nodes_[node].hash & mask;
  while (table_[gap] != node) gap = (gap + 1) & mask;
  for (uint64_t slot = (gap + 1) & mask; table_[slot] != kNone; slot = (slot + 1) & mask) {
    const uint64_t home = nodes_[table_[slot]].hash & mask;
    if (((slot - home) & mask) >= ((slot - gap) & mask)) {
      table_[gap] = table_[slot];
      gap = slot;
    }
  }
  table_[gap] = kNone;
}

void PrefixIndex::CheckChildren(uint32_t parent, std::vector<bool>& seen) const {
  std::vector<uint32_t> in_order, path;
  for (uint32_t node = ChildrenOf(parent); node != kNone || !path.empty();) {
    for (; node != kNone; node = nodes_[node].left) {
      KV_CHECK(node < nodes_.size() && !seen[node] && path.size() <= num_nodes_);
      for (uint32_t below : {nodes_[node].left, nodes_[node].right}) {
        KV_CHECK(below == kNone || Priority(below) <= Priority(node));
      }
      path.push_back(node);
    }
    node = path.back();
    path.pop_back();
    seen[node] = true;
    in_order.push_back(node);
    node = nodes_[node].right;
  }
  for (size_t i = 0; i < in_order.size(); ++i) {
    const Node& node = nodes_[in_order[i]];
    const auto mine = tokens(NodeId{in_order[i]});
    KV_CHECK(node.parent == parent && node.num_tokens > 0 && node.num_tokens <= block_tokens_);
    KV_CHECK(node.root == ((parent & kRootBit) != 0 ? parent : nodes_[parent].root));
    KV_CHECK(node.depth == depth(NodeId{parent}) + 1);
    for (uint32_t group = 0; group < num_groups_; ++group) {
      const auto block = this->block(NodeId{in_order[i]}, group);
      KV_CHECK(!block || node_of_block_[static_cast<size_t>(*block)] == in_order[i]);
    }
    KV_CHECK(node.hash == HashOf(NodeId{parent}, mine));
    KV_CHECK(node.children == kNone || node.num_tokens == block_tokens_);
    if (node.num_tokens == block_tokens_) {
      KV_CHECK(FindChild(NodeId{parent}, mine) == NodeId{in_order[i]});
    }
    if (i == 0) continue;
    // If no neighbours in order are prefixes of each other, no two children are.
    const auto before = tokens(NodeId{in_order[i - 1]});
    const uint32_t common = CommonPrefix(before, mine);
    KV_CHECK(common < before.size() && common < mine.size() && before[common] < mine[common]);
  }
}

void PrefixIndex::CheckInvariants() const {
  KV_CHECK(allocated_bytes() ==
           BytesFor({.num_blocks = static_cast<uint32_t>(node_of_block_.size()),
                     .block_tokens = block_tokens_,
                     .num_nodes = max_nodes(),
                     .num_groups = num_groups_,
                     .num_roots = num_roots_,
                     .seed = 0}));
  std::vector<bool> seen(nodes_.size());
  for (uint32_t r = 0; r < roots_.size(); ++r) CheckChildren(kRootBit | r, seen);
  for (uint32_t id = 0; id < nodes_.size(); ++id) {
    if (nodes_[id].num_tokens > 0) CheckChildren(id, seen);
  }
  uint32_t used = 0, full = 0, removed = 0;
  uint64_t total = 0;
  for (uint32_t id = 0; id < nodes_.size(); ++id) {
    KV_CHECK(seen[id] == (nodes_[id].num_tokens > 0));
    used += seen[id];
    removed += nodes_[id].num_tokens == 0 && nodes_[id].holds > 0;
    full += nodes_[id].num_tokens == block_tokens_;
    total += nodes_[id].num_tokens;
  }
  KV_CHECK(used + removed == num_nodes_ && total == num_tokens_);
  KV_CHECK(full == table_.size() - std::ranges::count(table_, kNone));
  KV_CHECK(num_blocks_ == node_of_block_.size() - std::ranges::count(node_of_block_, kNone));
  KV_CHECK(num_blocks_ == blocks_.size() - std::ranges::count(blocks_, kNone));
  for (uint32_t i = 0; i < nodes_.size() - num_nodes_; ++i) KV_CHECK(!seen[free_stack_[i]]);
}

}  // namespace kvasir
