// PrefixIndex: trie of blocks by their tokens; finds the longest resident prefix.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "block/block_pool.h"
#include "index/block_key.h"
#include "kvasir/types.h"

namespace kvasir {

// A node, or the root of a namespace (top bit set).
enum class NodeId : uint32_t {};

// A node is a full block (block_tokens tokens; may have children) or a tail (fewer; a leaf) below
// its parent. It has an optional block for each layer group, or none at all. Invariants: no child's
// tokens are a prefix of another child's of the same parent; no block is in two nodes.
//
// Children are found in two ways, both of which compare tokens: an open-addressing table by a
// seeded 64-bit hash of all tokens from the root on (full blocks), and a treap per parent in
// lexicographic order, where the longest common prefix with any child lies on the search path. So
// neither a million prompts nor a hundred thousand siblings are ever scanned.
//
// All memory is allocated at construction. One thread at a time.
class PrefixIndex {
 public:
  struct Options {
    uint32_t num_blocks;
    uint32_t block_tokens;    // at most 65535
    uint32_t num_nodes;       // at most
    uint32_t num_groups = 1;  // layer groups
    uint32_t num_roots = 16;  // namespaces, at most
    uint64_t seed;  // secret: prompts cannot be chosen to make hashes collide or treaps deep
    uint64_t hash_mask = ~uint64_t{0};  // tests narrow it to force collisions
  };
  struct Partial {
    NodeId node;
    uint32_t num_equal;  // tokens in common, may be 0
  };

  static uint64_t BytesFor(const Options& options);
  explicit PrefixIndex(const Options& options);

  NodeId AddRoot(const BlockKey& root_key);  // REQUIRES: fewer than num_roots roots
  // Makes the root another namespace's, or the same one's again: it forgets which nodes were
  // evicted. REQUIRES: it has no children.
  void RenewRoot(NodeId root, const BlockKey& root_key);

  // Returns the child that is the full block `tokens`. REQUIRES: tokens.size() == block_tokens.
  std::optional<NodeId> FindChild(NodeId parent, std::span<const TokenId> tokens) const;
  // Returns the child with the most leading tokens in common with `tokens`; absent when there is no
  // child. O(log children). REQUIRES: 0 < tokens.size() <= block_tokens.
  std::optional<Partial> BestPartial(NodeId parent, std::span<const TokenId> tokens) const;
  // Returns the children whose tokens begin with `tokens`, in lexicographic order; all of them when
  // it is empty. O(log children + result).
  std::vector<NodeId> ChildrenWith(NodeId parent, std::span<const TokenId> tokens) const {
    std::vector<NodeId> found;
    AddChildrenWith(parent, tokens, &found);
    return found;
  }
  void AddChildrenWith(NodeId parent, std::span<const TokenId> tokens,
                       std::vector<NodeId>* found) const;
  // Visits these nodes and all nodes below them, parents first: `visit(node, value)` gets what the
  // visit of its parent returned, `value` for `from`. Depth first: the nodes of a prompt lie side
  // by side in memory, so a walk in another order costs each node four cache misses.
  template <typename Value, typename Visit>
  void Walk(std::span<const NodeId> from, const Value& value, Visit&& visit) const;
  // Returns whether a child whose tokens are a prefix of `tokens`, longer than num_tokens, was
  // evicted lately.
  bool WasEvicted(NodeId parent, std::span<const TokenId> tokens, uint32_t num_tokens) const;

  // Adds a node without blocks and without holders. REQUIRES: no child's tokens are a prefix of
  // `tokens` or the reverse; num_nodes() < max_nodes().
  NodeId Insert(NodeId parent, std::span<const TokenId> tokens);
  // REQUIRES: the node has no block of the group, `block` is in no node.
  void SetBlock(NodeId node, uint32_t group, BlockId block);
  void ClearBlock(NodeId node, uint32_t group);    // REQUIRES: the node has a block of the group
  enum class RemoveKind { kForgotten, kEvicted };  // evicted ones are remembered for WasEvicted
  // Removes a node and its blocks. While somebody holds it, its place stays taken (is_removed).
  // REQUIRES: it has no children.
  void Remove(NodeId node, RemoveKind kind);
  // Removes all nodes under a root, and forgets which of them were evicted. Calls `leaving` for
  // each node before it is removed. O(max_nodes).
  void Clear(NodeId root, const std::function<void(NodeId)>& leaving);

  static bool is_root(NodeId node) { return (Raw(node) & kRootBit) != 0; }
  NodeId parent(NodeId node) const { return NodeId{At(node).parent}; }
  NodeId root(NodeId node) const { return NodeId{At(node).root}; }  // REQUIRES: not a root
  // Returns some child of a node or root; absent: it has none.
  std::optional<NodeId> any_child(NodeId node) const {
    const uint32_t child = ChildrenOf(Raw(node));
    return child == kNone ? std::nullopt : std::optional(NodeId{child});
  }
  std::optional<BlockId> block(NodeId node, uint32_t group) const {
    const uint32_t block = blocks_[size_t{Raw(node)} * num_groups_ + group];
    return block == kNone ? std::nullopt : std::optional(BlockId{block});
  }
  // Counts those who need the node, even if it has no block. REQUIRES: not a root.
  void Hold(NodeId node) { ++nodes_[Raw(node)].holds; }
  void Unhold(NodeId node);
  bool is_held(NodeId node) const { return At(node).holds > 0; }  // REQUIRES: not a root
  // Returns whether a node that is held was removed. REQUIRES: it is held, and no Clear since then.
  bool is_removed(NodeId node) const { return !is_root(node) && At(node).num_tokens == 0; }
  // Returns whether nothing needs the node: it has no block, no child and no hold. REQUIRES: not a
  // root.
  bool is_bare(NodeId node) const;
  std::span<const TokenId> tokens(NodeId node) const {
    return {TokensOf(Raw(node)), At(node).num_tokens};
  }
  // Prompts that found it; at most kMaxHits are counted. REQUIRES, both: not a root.
  static constexpr uint32_t kMaxHits = 65535;
  uint32_t hits(NodeId node) const { return At(node).hits; }
  void CountHit(NodeId node) {
    uint16_t& hits = nodes_[Raw(node)].hits;
    if (hits < kMaxHits) ++hits;
  }
  uint32_t depth(NodeId node) const { return is_root(node) ? 0 : At(node).depth; }  // blocks
  // Returns a keyed hash of the root and all tokens up to the node's end. REQUIRES: not a root.
  uint64_t content(NodeId node) const { return At(node).hash; }
  bool has_children(NodeId node) const;
  const BlockKey& key(NodeId node) const;  // REQUIRES: a root or a full block
  // Returns the key that the full block `tokens` after the block `parent` has under this root.
  // O(tokens).
  BlockKey NextKey(NodeId root, const BlockKey& parent, std::span<const TokenId> tokens) const {
    return ChildKey(roots_[Raw(root) & ~kRootBit].hmac, parent, tokens);
  }
  std::optional<NodeId> node_of(BlockId block) const {
    const uint32_t node = node_of_block_[static_cast<size_t>(block)];
    return node == kNone ? std::nullopt : std::optional(NodeId{node});
  }
  uint32_t num_nodes() const { return num_nodes_; }
  uint32_t max_nodes() const { return static_cast<uint32_t>(nodes_.size()); }
  uint32_t num_blocks() const { return num_blocks_; }  // of all nodes
  uint64_t num_tokens() const { return num_tokens_; }  // of all nodes
  uint64_t allocated_bytes() const;                    // equals BytesFor
  void CheckInvariants() const;                        // O(everything)

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr uint32_t kRootBit = uint32_t{1} << 31;

  struct Node {
    uint64_t hash;  // of all tokens from the root on
    uint32_t parent;
    uint32_t root;
    uint32_t holds;
    uint32_t children;  // treap of the children
    uint32_t left;      // in the parent's treap
    uint32_t right;
    uint32_t depth;
    uint16_t num_tokens;  // 0: the node is free
    uint16_t hits;
  };
  struct Root {
    BlockKey key;
    HmacKey hmac;
    uint64_t hash;
    uint32_t children = kNone;
  };

  Root RootOf(const BlockKey& root_key) const;
  static uint32_t Raw(NodeId node) { return static_cast<uint32_t>(node); }
  const Node& At(NodeId node) const { return nodes_[Raw(node)]; }
  const TokenId* TokensOf(uint32_t node) const { return &tokens_[size_t{node} * block_tokens_]; }
  uint32_t* ChildrenOf(uint32_t parent);
  uint32_t ChildrenOf(uint32_t parent) const;
  // Returns the hash of all tokens from the root to `tokens` below `parent`.
  uint64_t HashOf(NodeId parent, std::span<const TokenId> tokens) const;
  uint64_t Priority(uint32_t node) const;
  bool TokensEqual(uint32_t node, std::span<const TokenId> tokens) const;
  bool Less(std::span<const TokenId> tokens, uint32_t node) const;
  void TableInsert(uint32_t node);
  void TableRemove(uint32_t node);
  void FreeNode(uint32_t node);
  void CheckChildren(uint32_t parent, std::vector<bool>& seen) const;

  uint32_t block_tokens_;
  uint64_t seed_;
  uint64_t hash_mask_;
  uint32_t num_roots_;
  uint32_t num_groups_;
  uint32_t num_nodes_ = 0;
  uint32_t num_blocks_ = 0;
  uint64_t num_tokens_ = 0;
  std::vector<Node> nodes_;              // [max_nodes]
  std::vector<TokenId> tokens_;          // [max_nodes][block_tokens]
  std::vector<BlockKey> keys_;           // [max_nodes]
  std::vector<uint32_t> blocks_;         // [max_nodes][num_groups], kNone: no block
  std::vector<uint32_t> free_stack_;     // [max_nodes], the first max_nodes - num_nodes are free
  std::vector<uint32_t> node_of_block_;  // [num_blocks]
  std::vector<uint32_t> table_;          // [power of two]: nodes, linear probing
  std::vector<uint64_t> ghosts_;  // [power of two]: hashes of what was evicted, direct-mapped
  std::vector<Root> roots_;
};

template <typename Value, typename Visit>
void PrefixIndex::Walk(std::span<const NodeId> from, const Value& value, Visit&& visit) const {
  struct Next {
    uint32_t node;
    bool has_siblings;  // the rest of its parent's treap is below it
    Value value;        // of its parent
  };
  std::vector<Next> stack;
  const auto push = [&](uint32_t node, bool has_siblings, const Value& parents) {
    if (node != kNone) stack.push_back({node, has_siblings, parents});
  };
  for (const NodeId node : from) push(Raw(node), false, value);
  while (!stack.empty()) {
    const Next next = stack.back();
    stack.pop_back();
    const Node& node = nodes_[next.node];
    if (next.has_siblings) {
      push(node.left, true, next.value);
      push(node.right, true, next.value);
    }
    push(node.children, true, visit(NodeId{next.node}, next.value));
  }
}

}  // namespace kvasir
