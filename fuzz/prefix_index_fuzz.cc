// Turns bytes into operations on a prefix index; its twin, a list of nodes that is scanned, must
// give the same answers. The first bytes choose the sizes and how often hashes collide.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "byte_source.h"
#include "fuzz_target.h"
#include "index/prefix_index.h"

namespace kvasir {
namespace {

using Tokens = std::vector<TokenId>;

constexpr uint32_t kRoots = 3;
constexpr int kStepsPerCheck = 4;

struct TwinNode {
  NodeId id, parent, root;
  Tokens tokens;
  Tokens path;                                 // the tokens from the root on
  std::vector<std::optional<BlockId>> blocks;  // [group]
  BlockKey key;
  uint32_t depth;
  uint32_t holds = 0;
};

uint32_t Common(std::span<const TokenId> a, std::span<const TokenId> b) {
  uint32_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

BlockKey RootKey(uint32_t root) {
  BlockKey key{};
  key.fill(static_cast<uint8_t>(root + 1));
  return key;
}

PrefixIndex::Options OptionsFrom(ByteSource& bytes) {
  constexpr uint64_t kMasks[] = {~uint64_t{0}, 0, 1, 3, 15, ~uint64_t{0} << 32};
  PrefixIndex::Options options{};
  options.num_blocks = bytes.Between(1, 40);
  options.block_tokens = bytes.Between(1, 5);
  options.num_nodes = bytes.Between(1, 40);
  options.num_groups = bytes.Between(1, 3);
  options.num_roots = kRoots;
  options.hash_mask = kMasks[bytes.Below(std::size(kMasks))];
  options.seed = Mix64(bytes.Byte());
  return options;
}

class Drill {
 public:
  explicit Drill(ByteSource& bytes) : bytes_(bytes), options_(OptionsFrom(bytes)) {
    for (uint32_t i = 0; i < kRoots; ++i) {
      roots_.push_back(index_.AddRoot(RootKey(i)));
      hmacs_.emplace_back(RootKey(i));
    }
    for (uint32_t i = 0; i < options_.num_blocks; ++i) free_.push_back(BlockId{i});
  }

  void Run() {
    for (int step = 1; !bytes_.empty(); ++step) {
      Step();
      if (step % kStepsPerCheck == 0) Check();
    }
    Check();
  }

 private:
  void Step() {
    const uint32_t draw = bytes_.Below(64);
    if (draw < 20) {
      Insert();
    } else if (draw < 30) {
      ChangeNode();
    } else if (draw < 40) {
      Remove();
    } else if (draw < 63) {
      Query();
    } else {
      Clear();
    }
  }

  // Draws few different tokens, so that prompts share prefixes, including the ends of the range.
  Tokens SomeTokens(uint32_t count) {
    constexpr TokenId kTokens[] = {0,
                                   1,
                                   2,
                                   3,
                                   255,
                                   -1,
                                   std::numeric_limits<TokenId>::min(),
                                   std::numeric_limits<TokenId>::max()};
    Tokens tokens(count);
    for (TokenId& token : tokens) token = kTokens[bytes_.Below(std::size(kTokens))];
    return tokens;
  }

  NodeId SomeParent() {
    std::vector<NodeId> parents = roots_;
    for (const TwinNode& node : nodes_) {
      if (node.tokens.size() == options_.block_tokens) parents.push_back(node.id);
    }
    return parents[bytes_.Below(static_cast<uint32_t>(parents.size()))];
  }

  const TwinNode* Find(NodeId id) const {
    const auto it = std::ranges::find(nodes_, id, &TwinNode::id);
    return it == nodes_.end() ? nullptr : &*it;
  }
  size_t RootIndex(NodeId root) const {
    return static_cast<size_t>(std::ranges::find(roots_, root) - roots_.begin());
  }
  NodeId RootOf(NodeId parent) const {
    return index_.is_root(parent) ? parent : Find(parent)->root;
  }
  Tokens PathOf(NodeId parent, std::span<const TokenId> tokens) const {
    Tokens path;
    if (const TwinNode* node = Find(parent)) path = node->path;
    path.insert(path.end(), tokens.begin(), tokens.end());
    return path;
  }
  bool HasChildren(NodeId id) const {
    return std::ranges::find(nodes_, id, &TwinNode::parent) != nodes_.end();
  }

  void Insert() {
    const NodeId parent = SomeParent();
    const bool full = bytes_.Below(3) > 0;
    const Tokens tokens =
        SomeTokens(full ? options_.block_tokens : bytes_.Between(1, options_.block_tokens));
    if (nodes_.size() + removed_.size() == options_.num_nodes) return;
    for (const TwinNode& node : nodes_) {
      if (node.parent != parent) continue;
      const uint32_t common = Common(node.tokens, tokens);
      if (common == tokens.size() || common == node.tokens.size()) return;
    }
    TwinNode node{index_.Insert(parent, tokens),
                  parent,
                  RootOf(parent),
                  tokens,
                  PathOf(parent, tokens),
                  std::vector<std::optional<BlockId>>(options_.num_groups),
                  {},
                  1};
    const TwinNode* above = Find(parent);
    if (above != nullptr) node.depth = above->depth + 1;
    if (tokens.size() == options_.block_tokens) {
      const size_t root = RootIndex(node.root);
      const BlockKey& key = above == nullptr ? RootKey(static_cast<uint32_t>(root)) : above->key;
      node.key = ChildKey(hmacs_[root], key, tokens);
    }
    evicted_.erase({RootIndex(node.root), node.path});
    nodes_.push_back(std::move(node));
  }

  // Gives or takes a block, or a hold on it.
  void ChangeNode() {
    const auto num_nodes = static_cast<uint32_t>(nodes_.size());
    const auto num_removed = static_cast<uint32_t>(removed_.size());
    if (num_nodes + num_removed == 0) return;
    const uint32_t at = bytes_.Below(num_nodes + num_removed);
    if (at >= num_nodes) return UnholdRemoved(at - num_nodes);
    TwinNode& node = nodes_[at];
    const uint32_t group = bytes_.Below(options_.num_groups);
    if (bytes_.Below(3) == 0) {
      const bool hold = node.holds == 0 || bytes_.Below(2) == 0;
      hold ? index_.Hold(node.id) : index_.Unhold(node.id);
      node.holds = hold ? node.holds + 1 : node.holds - 1;
    } else if (node.blocks[group]) {
      index_.ClearBlock(node.id, group);
      free_.push_back(*node.blocks[group]);
      node.blocks[group].reset();
    } else if (!free_.empty()) {
      node.blocks[group] = free_.back();
      free_.pop_back();
      index_.SetBlock(node.id, group, *node.blocks[group]);
    }
  }

  // Ends a hold on a removed node, which keeps its place until it is held no more.
  void UnholdRemoved(uint32_t at) {
    TwinNode& node = removed_[at];
    KV_CHECK(index_.is_removed(node.id));
    index_.Unhold(node.id);
    if (--node.holds == 0) removed_.erase(removed_.begin() + at);
  }

  void Free(const TwinNode& node) {
    for (const auto& block : node.blocks) {
      if (block) free_.push_back(*block);
    }
  }

  void Remove() {
    if (nodes_.empty()) return;
    const uint32_t i = bytes_.Below(static_cast<uint32_t>(nodes_.size()));
    const bool evict = bytes_.Below(2) == 1;
    const TwinNode node = nodes_[i];
    const bool leaf = !HasChildren(node.id);
    KV_CHECK(index_.has_children(node.id) == !leaf);
    if (!leaf) return;
    using enum PrefixIndex::RemoveKind;
    index_.Remove(node.id, evict ? kEvicted : kForgotten);
    Free(node);
    nodes_.erase(nodes_.begin() + i);
    if (node.holds > 0) removed_.push_back(node);
    if (!evict) return;
    evicted_.insert({RootIndex(node.root), node.path});
    if (options_.hash_mask == ~uint64_t{0}) {
      const auto last = static_cast<uint32_t>(node.tokens.size() - 1);
      KV_CHECK(index_.WasEvicted(node.parent, node.tokens, last));
    }
  }

  void Clear() {
    const NodeId root = roots_[bytes_.Below(kRoots)];
    std::set<NodeId> left;
    index_.Clear(root, [&](NodeId id) {
      const TwinNode* node = Find(id);
      KV_CHECK(node != nullptr && node->root == root);
      KV_CHECK(left.insert(id).second);
      Free(*node);
    });
    KV_CHECK(std::cmp_equal(left.size(), std::ranges::count(nodes_, root, &TwinNode::root)));
    std::erase_if(nodes_, [&](const TwinNode& node) { return node.root == root; });
    std::erase_if(removed_, [&](const TwinNode& node) { return node.root == root; });
    std::erase_if(evicted_, [&](const auto& entry) { return entry.first == RootIndex(root); });
  }

  void Query() {
    const NodeId parent = SomeParent();
    const Tokens tokens = SomeTokens(bytes_.Between(1, options_.block_tokens));
    std::optional<NodeId> exact;
    std::optional<uint32_t> best;
    for (const TwinNode& node : nodes_) {
      if (node.parent != parent) continue;
      if (node.tokens == tokens) exact = node.id;
      best = std::max(best.value_or(0), Common(node.tokens, tokens));
    }
    if (tokens.size() == options_.block_tokens) {
      KV_CHECK(index_.FindChild(parent, tokens) == exact);
    }
    const auto found = index_.BestPartial(parent, tokens);
    KV_CHECK(found.has_value() == best.has_value());
    if (found) {
      KV_CHECK(found->num_equal == *best && index_.parent(found->node) == parent);
      KV_CHECK(Common(index_.tokens(found->node), tokens) == *best);
    }
    QueryChildren(parent, tokens);
    QueryEvicted(parent, tokens);
  }

  void QueryChildren(NodeId parent, const Tokens& tokens) {
    const auto first = std::span(tokens).first(bytes_.Below(options_.block_tokens));
    std::vector<const TwinNode*> expected;
    for (const TwinNode& node : nodes_) {
      if (node.parent == parent && Common(node.tokens, first) == first.size()) {
        expected.push_back(&node);
      }
    }
    std::ranges::sort(expected, {}, &TwinNode::tokens);
    KV_CHECK(
        std::ranges::equal(index_.ChildrenWith(parent, first), expected, {}, {}, &TwinNode::id));
  }

  // Checks that the index invents no evicted path, unless hashes are cut. It may forget one.
  void QueryEvicted(NodeId parent, const Tokens& tokens) {
    const uint32_t known = bytes_.Below(options_.block_tokens + 1);
    const bool was = index_.WasEvicted(parent, tokens, known);
    bool may = options_.hash_mask != ~uint64_t{0};
    for (size_t n = known + 1; n <= tokens.size(); ++n) {
      may |= evicted_.contains(
          {RootIndex(RootOf(parent)), PathOf(parent, std::span(tokens).first(n))});
    }
    KV_CHECK(!was || may);
  }

  void Check() const {
    index_.CheckInvariants();
    uint64_t total = 0;
    for (const TwinNode& node : nodes_) {
      KV_CHECK(std::ranges::equal(index_.tokens(node.id), node.tokens));
      bool bare = node.holds == 0 && !HasChildren(node.id);
      for (uint32_t group = 0; group < options_.num_groups; ++group) {
        const auto block = node.blocks[group];
        KV_CHECK(index_.block(node.id, group) == block);
        KV_CHECK(!block || index_.node_of(*block) == node.id);
        bare &= !block;
      }
      KV_CHECK(index_.is_bare(node.id) == bare);
      KV_CHECK(index_.parent(node.id) == node.parent && index_.depth(node.id) == node.depth);
      KV_CHECK(index_.has_children(node.id) == HasChildren(node.id));
      const bool full = node.tokens.size() == options_.block_tokens;
      if (full) KV_CHECK(index_.key(node.id) == node.key);
      total += node.tokens.size();
    }
    for (const TwinNode& node : removed_) KV_CHECK(index_.is_removed(node.id));
    for (const BlockId block : free_) KV_CHECK(!index_.node_of(block));
    KV_CHECK(index_.num_nodes() == nodes_.size() + removed_.size());
    KV_CHECK(index_.num_tokens() == total);
  }

  ByteSource& bytes_;
  const PrefixIndex::Options options_;
  PrefixIndex index_{options_};
  std::vector<NodeId> roots_;
  std::vector<HmacKey> hmacs_;  // [root]
  std::vector<TwinNode> nodes_;
  std::vector<TwinNode> removed_;  // those of them that somebody still holds
  std::vector<BlockId> free_;
  std::set<std::pair<size_t, Tokens>> evicted_;  // root and path
};

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(prefix_index)(const uint8_t* data, size_t size) {
  kvasir::ByteSource bytes(data, size);
  kvasir::Drill(bytes).Run();
  return 0;
}
