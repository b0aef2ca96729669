#include "index/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/clock.h"
#include "base/fault.h"
#include "base/hex.h"
#include "base/random.h"

namespace kvasir {
namespace {

using Tokens = std::vector<TokenId>;

BlockKey KeyOf(uint8_t value) {
  BlockKey key{};
  key.fill(value);
  return key;
}

PrefixIndex MakeIndex(uint32_t num_blocks, uint32_t block_tokens, uint64_t hash_mask = ~0ull) {
  return PrefixIndex({.num_blocks = num_blocks,
                      .block_tokens = block_tokens,
                      .num_nodes = num_blocks,
                      .seed = 42,
                      .hash_mask = hash_mask});
}

NodeId Add(PrefixIndex& index, NodeId parent, std::span<const TokenId> tokens, BlockId block) {
  const NodeId node = index.Insert(parent, tokens);
  index.SetBlock(node, 0, block);
  return node;
}

TEST(BlockKey, DependsOnSecretTenantIdentityParentAndTokens) {
  const Digest identity = KeyOf(1);
  std::set<BlockKey> keys;
  for (uint8_t secret : {1, 2}) {
    for (const char* tenant : {"a", "b"}) {
      for (const Digest& kind : {identity, KeyOf(2)}) {
        const BlockKey root = NamespaceRoot(KeyOf(secret), tenant, kind);
        EXPECT_TRUE(keys.insert(root).second);
        const HmacKey hmac(root);
        for (const Tokens& tokens : {Tokens{1, 2}, Tokens{2, 1}}) {
          const BlockKey key = ChildKey(hmac, root, tokens);
          EXPECT_TRUE(keys.insert(key).second);
          EXPECT_TRUE(keys.insert(ChildKey(hmac, key, tokens)).second);
        }
      }
    }
  }
}

// The definition, with another implementation (Python's hmac): HMAC(secret = 32 x 0x07,
// le64(3) || "bob" || 32 x 0x01) is the root, HMAC(root, root || le32 1, 2) the key below it.
TEST(BlockKey, EqualsAnIndependentImplementation) {
  const BlockKey root = NamespaceRoot(KeyOf(7), "bob", KeyOf(1));
  EXPECT_EQ(ToHex(root), "fadc00efed2982840810dfa0b93d201f8dd32c6c72df0e914b76d41bde04fd54");
  EXPECT_EQ(ToHex(ChildKey(HmacKey(root), root, Tokens{1, 2})),
            "9db8d066c2e4b8b12e4fd81cd87a49ab0a814bf83d31762802f1d8f2e6ef7873");
}

TEST(PrefixIndex, FindsTheChainItHoldsAndItsKeys) {
  PrefixIndex index = MakeIndex(8, 2);
  const NodeId root = index.AddRoot(KeyOf(9));
  const NodeId a = Add(index, root, Tokens{1, 2}, BlockId{5});
  const NodeId b = Add(index, a, Tokens{3, 4}, BlockId{1});
  EXPECT_EQ(index.FindChild(root, Tokens{1, 2}), a);
  EXPECT_EQ(index.FindChild(a, Tokens{3, 4}), b);
  EXPECT_EQ(index.FindChild(root, Tokens{3, 4}), std::nullopt);
  EXPECT_EQ(index.FindChild(b, Tokens{3, 4}), std::nullopt);
  EXPECT_EQ(index.parent(b), a);
  EXPECT_EQ(index.depth(b), 2u);
  EXPECT_EQ(index.node_of(BlockId{1}), b);
  const HmacKey hmac(KeyOf(9));
  EXPECT_EQ(index.key(a), ChildKey(hmac, KeyOf(9), Tokens{1, 2}));
  EXPECT_EQ(index.key(b), ChildKey(hmac, index.key(a), Tokens{3, 4}));
  index.CheckInvariants();
}

TEST(PrefixIndex, KeepsRootsApart) {
  PrefixIndex index = MakeIndex(4, 2);
  const NodeId mine = index.AddRoot(KeyOf(1));
  const NodeId theirs = index.AddRoot(KeyOf(2));
  Add(index, theirs, Tokens{1, 2}, BlockId{0});
  EXPECT_EQ(index.FindChild(mine, Tokens{1, 2}), std::nullopt);
  EXPECT_FALSE(index.BestPartial(mine, Tokens{1}));
}

TEST(PrefixIndex, ComparesTokensWhenAllHashesCollide) {
  PrefixIndex index = MakeIndex(64, 4, /*hash_mask=*/0);
  const NodeId root = index.AddRoot(KeyOf(1));
  std::map<Tokens, NodeId> nodes;
  for (int i = 0; i < 60; ++i) {
    const Tokens tokens{i % 3, i % 4, i % 5, i};
    nodes[tokens] = Add(index, root, tokens, BlockId(i));
  }
  index.CheckInvariants();
  for (const auto& [tokens, node] : nodes) EXPECT_EQ(index.FindChild(root, tokens), node);
  EXPECT_EQ(index.FindChild(root, Tokens{0, 0, 0, 1}), std::nullopt);
  while (!nodes.empty()) {
    index.Remove(nodes.begin()->second, PrefixIndex::RemoveKind::kForgotten);
    EXPECT_EQ(index.FindChild(root, nodes.begin()->first), std::nullopt);
    nodes.erase(nodes.begin());
    index.CheckInvariants();
  }
}

TEST(PrefixIndex, SkippingTheComparisonIsAFaultThatShows) {
  PrefixIndex index = MakeIndex(4, 2);
  const NodeId root = index.AddRoot(KeyOf(1));
  const NodeId node = Add(index, root, Tokens{1, 2}, BlockId{0});
  InjectFault(Fault::kSkippedCompare);
  const auto found = index.FindChild(root, Tokens{7, 7});
  InjectFault(Fault::kNone);
  EXPECT_EQ(found, node);
  EXPECT_EQ(index.FindChild(root, Tokens{7, 7}), std::nullopt);
}

TEST(PrefixIndex, RemembersWhatWasEvictedUntilItIsBackOrErased) {
  using enum PrefixIndex::RemoveKind;
  PrefixIndex index = MakeIndex(8, 4);
  const NodeId root = index.AddRoot(KeyOf(1));
  const auto evict = [&](Tokens tokens) {
    index.Remove(Add(index, root, tokens, BlockId{0}), kEvicted);
  };
  evict({1, 2, 3, 4});
  evict({7, 8});
  EXPECT_TRUE(index.WasEvicted(root, Tokens{1, 2, 3, 4}, 0));
  EXPECT_FALSE(index.WasEvicted(root, Tokens{1, 2, 3, 5}, 0));
  EXPECT_TRUE(index.WasEvicted(root, Tokens{7, 8, 9}, 1));
  EXPECT_FALSE(index.WasEvicted(root, Tokens{7, 8, 9}, 2));
  index.Remove(Add(index, root, Tokens{1, 2, 3, 4}, BlockId{0}), kForgotten);
  EXPECT_FALSE(index.WasEvicted(root, Tokens{1, 2, 3, 4}, 0));
  index.Clear(root, [](NodeId) {});
  EXPECT_FALSE(index.WasEvicted(root, Tokens{7, 8, 9}, 0));
}

TEST(PrefixIndex, FindsTheBestOfAHundredThousandSiblingsWithoutAScan) {
  constexpr uint32_t kSiblings = 100'000;
  PrefixIndex index = MakeIndex(kSiblings, 16);
  const NodeId root = index.AddRoot(KeyOf(1));
  Tokens tokens(16, 5);
  for (uint32_t i = 0; i < kSiblings; ++i) {
    tokens[7] = static_cast<TokenId>(Mix64(i) >> 33);
    tokens[15] = static_cast<TokenId>(i);
    Add(index, root, tokens, BlockId{i});
  }
  // A scan would read 100,000 nodes per query, 4e8 in all; any machine stays below this bound.
  const uint64_t begin = MonotonicNs();
  for (uint32_t i = 0; i < 4000; ++i) {
    tokens[7] = static_cast<TokenId>(Mix64(i * 25) >> 33);
    tokens[15] = -1;
    const auto best = index.BestPartial(root, tokens);
    ASSERT_TRUE(best && best->num_equal == 15);
    ASSERT_EQ(*index.block(best->node, 0), BlockId{i * 25});
  }
  EXPECT_LT(MonotonicNs() - begin, 2'000'000'000u);
}

// A twin that keeps every node's whole path in a map and answers by scanning it.
class PrefixIndexModel : public testing::TestWithParam<std::tuple<uint64_t, uint64_t>> {
 protected:
  static constexpr uint32_t kBlockTokens = 3;
  static constexpr uint32_t kBlocks = 40;

  struct Twin {
    NodeId parent, node;
    Tokens tokens;
    BlockId block;
  };

  static uint32_t Common(const Tokens& a, const Tokens& b) {
    uint32_t n = 0;
    while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
    return n;
  }

  Tokens RandomTokens(bool full) {
    Tokens tokens(full ? kBlockTokens : 1 + random_.Below(kBlockTokens));
    for (TokenId& token : tokens) token = static_cast<TokenId>(random_.Below(3));
    return tokens;
  }

  NodeId RandomParent() {
    std::vector<NodeId> parents = roots_;
    for (const Twin& twin : twins_) {
      if (twin.tokens.size() == kBlockTokens) parents.push_back(twin.node);
    }
    return parents[random_.Below(parents.size())];
  }

  void Insert() {
    const NodeId parent = RandomParent();
    const Tokens tokens = RandomTokens(random_.Below(3) > 0);
    if (free_.empty()) return;
    for (const Twin& twin : twins_) {
      if (twin.parent != parent) continue;
      const uint32_t common = Common(twin.tokens, tokens);
      if (common == tokens.size() || common == twin.tokens.size()) return;
    }
    const BlockId block = free_.back();
    free_.pop_back();
    twins_.push_back({parent, Add(index_, parent, tokens, block), tokens, block});
  }

  void Remove() {
    if (twins_.empty()) return;
    const size_t i = random_.Below(twins_.size());
    const bool leaf = std::ranges::none_of(
        twins_, [&](const Twin& twin) { return twin.parent == twins_[i].node; });
    ASSERT_EQ(index_.has_children(twins_[i].node), !leaf);
    if (!leaf) return;
    index_.Remove(twins_[i].node, PrefixIndex::RemoveKind::kEvicted);
    free_.push_back(twins_[i].block);
    twins_.erase(twins_.begin() + static_cast<ptrdiff_t>(i));
  }

  void Clear() {
    const NodeId root = roots_[random_.Below(roots_.size())];
    std::set<NodeId> below{root};
    for (bool grew = true; grew;) {
      grew = false;
      for (const Twin& twin : twins_) {
        if (below.contains(twin.parent)) grew |= below.insert(twin.node).second;
      }
    }
    std::set<NodeId> removed{root};
    index_.Clear(root, [&](NodeId node) {
      removed.insert(node);
      free_.push_back(*index_.block(node, 0));
    });
    EXPECT_EQ(removed, below);
    std::erase_if(twins_, [&](const Twin& twin) { return below.contains(twin.node); });
  }

  void Query() {
    const NodeId parent = RandomParent();
    const Tokens tokens = RandomTokens(false);
    std::optional<NodeId> exact;
    std::optional<uint32_t> best;
    for (const Twin& twin : twins_) {
      if (twin.parent != parent) continue;
      if (twin.tokens == tokens) exact = twin.node;
      best = std::max(best.value_or(0), Common(twin.tokens, tokens));
    }
    if (tokens.size() == kBlockTokens) {
      EXPECT_EQ(index_.FindChild(parent, tokens), exact);
    }
    const auto found = index_.BestPartial(parent, tokens);
    ASSERT_EQ(found.has_value(), best.has_value());
    if (!found) return;
    EXPECT_EQ(found->num_equal, *best);
    const auto theirs = index_.tokens(found->node);
    EXPECT_EQ(Common(Tokens(theirs.begin(), theirs.end()), tokens), *best);
    EXPECT_EQ(index_.parent(found->node), parent);
  }

  void Check() {
    index_.CheckInvariants();
    uint64_t total = 0;
    for (const Twin& twin : twins_) {
      EXPECT_TRUE(std::ranges::equal(index_.tokens(twin.node), twin.tokens));
      EXPECT_EQ(index_.block(twin.node, 0), twin.block);
      total += twin.tokens.size();
    }
    EXPECT_EQ(index_.num_nodes(), twins_.size());
    EXPECT_EQ(index_.num_tokens(), total);
  }

  Random random_{std::get<0>(GetParam())};
  PrefixIndex index_ = MakeIndex(kBlocks, kBlockTokens, std::get<1>(GetParam()));
  std::vector<NodeId> roots_{index_.AddRoot(KeyOf(1)), index_.AddRoot(KeyOf(2))};
  std::vector<Twin> twins_;
  std::vector<BlockId> free_ = [] {
    std::vector<BlockId> all;
    for (uint32_t i = 0; i < kBlocks; ++i) all.push_back(BlockId{i});
    return all;
  }();
};

TEST_P(PrefixIndexModel, BehavesLikeItsTwin) {
  SCOPED_TRACE(testing::Message() << "seed " << std::get<0>(GetParam()));
  for (int step = 0; step < 3000 && !HasFailure(); ++step) {
    const uint64_t draw = random_.Below(200);
    if (draw == 0) {
      Clear();
    } else if (draw < 80) {
      Insert();
    } else if (draw < 140) {
      Remove();
    } else {
      Query();
    }
    Check();
  }
}

INSTANTIATE_TEST_SUITE_P(SeedsAndHashes, PrefixIndexModel,
                         testing::Combine(testing::Range<uint64_t>(1, 6),
                                          testing::Values(~0ull, 0ull, 3ull)));

}  // namespace
}  // namespace kvasir
