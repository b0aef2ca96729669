// What Continuations finds, against a naive twin that knows every text of the index.
#include "index/continuations.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace kvasir {
namespace {

using TokenList = std::vector<TokenId>;

constexpr uint32_t kTextBlocks = 40, kTextBlock = 16;

BlockKey TextKey(uint8_t value) {
  BlockKey key{};
  key.fill(value);
  return key;
}

// An index with two namespaces, and a table of its texts.
struct Texts {
  PrefixIndex index{{.num_blocks = kTextBlocks,
                     .block_tokens = kTextBlock,
                     .num_nodes = kTextBlocks,
                     .seed = 42}};
  NodeId mine = index.AddRoot(TextKey(1)), theirs = index.AddRoot(TextKey(2));
  Continuations table{index, uint64_t{kTextBlocks} * kTextBlock, 7};

  NodeId Add(NodeId parent, const TokenList& tokens) {
    const NodeId node = index.Insert(parent, tokens);
    table.Add(node);
    return node;
  }
  TokenList Follow(NodeId root, const TokenList& tokens, uint32_t most) const {
    const auto match = table.Find(root, tokens);
    TokenList drafted(match ? most : 0);
    if (match) drafted.resize(table.Follow(*match, drafted));
    return drafted;
  }
};

TokenList Counting(TokenId first, uint32_t count) {
  TokenList tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = first + static_cast<TokenId>(i);
  return tokens;
}

TEST(Continuations, DraftWhatFollowedAcrossBlocks) {
  Texts texts;
  const NodeId first = texts.Add(texts.mine, Counting(100, 16));
  const NodeId second = texts.Add(first, Counting(116, 16));
  const auto match = texts.table.Find(texts.mine, Counting(105, 10));
  ASSERT_TRUE(match);
  EXPECT_EQ(match->node, first);
  EXPECT_EQ(match->offset, 15u);
  EXPECT_EQ(match->num_equal, 10u);
  EXPECT_EQ(texts.Follow(texts.mine, Counting(105, 10), 5), Counting(115, 5));
  // The first token of the next block, and the end of what is known.
  EXPECT_EQ(texts.table.Find(texts.mine, Counting(108, 8))->node, second);
  EXPECT_EQ(texts.Follow(texts.mine, Counting(120, 10), 9), Counting(130, 2));
  EXPECT_TRUE(texts.Follow(texts.mine, Counting(124, 8), 9).empty());
}

TEST(Continuations, TakeTheLongestMatchAndOfEqualOnesTheNewest) {
  Texts texts;
  const NodeId first = texts.Add(texts.mine, Counting(100, 16));
  TokenList other = Counting(200, 16);
  other[4] = 107;
  other[5] = 108;
  other[6] = 109;
  texts.Add(first, other);
  EXPECT_EQ(texts.Follow(texts.mine, {1, 2, 107, 108, 109}, 2), (TokenList{207, 208}));
  EXPECT_EQ(texts.table.Find(texts.mine, TokenList{1, 107, 108, 109})->num_equal, 3u);
  EXPECT_EQ(texts.Follow(texts.mine, Counting(102, 8), 2), Counting(110, 2))
      << "8 tokens are equal";
}

TEST(Continuations, NeverFindWhatIsGoneOrForeign) {
  Texts texts;
  texts.Add(texts.theirs, Counting(100, 16));
  EXPECT_FALSE(texts.table.Find(texts.mine, Counting(100, 9)));
  const NodeId node = texts.Add(texts.mine, Counting(100, 16));
  EXPECT_TRUE(texts.table.Find(texts.mine, Counting(100, 9)));
  texts.index.Remove(node, PrefixIndex::RemoveKind::kForgotten);
  EXPECT_FALSE(texts.table.Find(texts.mine, Counting(100, 9)));
  EXPECT_EQ(texts.Follow(texts.theirs, Counting(100, 9), 1), Counting(109, 1))
      << "other namespaces keep theirs";
  // The node of what is gone has other tokens now.
  texts.index.Insert(texts.mine, Counting(300, 16));
  EXPECT_FALSE(texts.table.Find(texts.mine, Counting(100, 9)));
}

TEST(Continuations, TakeTheBytesOfTheirPlan) {
  Texts texts;
  EXPECT_EQ(texts.table.allocated_bytes(), Continuations::BytesFor(kTextBlocks * kTextBlock));
  EXPECT_EQ(Continuations::BytesFor(0), 0u);
  EXPECT_EQ(Continuations::BytesFor(uint64_t{1} << 40), Continuations::kMaxBytes);
  Continuations none(texts.index, 0, 7);
  none.Add(texts.Add(texts.mine, Counting(100, 16)));
  EXPECT_FALSE(none.Find(texts.mine, Counting(100, 9)));
}

// Texts come and go in two namespaces. Whatever is found is a text that is there, and follows what
// was asked for; most texts of the index are found.
class ContinuationsModel : public testing::TestWithParam<uint64_t> {
 protected:
  struct Chain {
    NodeId root;
    std::vector<NodeId> nodes;
    TokenList tokens;
  };

  void AddChain() {
    Chain chain{random_.Below(2) == 0 ? texts_.mine : texts_.theirs, {}, {}};
    NodeId parent = chain.root;
    for (uint64_t left = 1 + random_.Below(4); left > 0; --left) {
      TokenList tokens(kTextBlock);
      for (TokenId& token : tokens) token = static_cast<TokenId>(random_.Below(6));
      if (texts_.index.num_nodes() == texts_.index.max_nodes()) break;
      if (texts_.index.FindChild(parent, tokens)) break;
      parent = texts_.Add(parent, tokens);
      chain.nodes.push_back(parent);
      chain.tokens.insert(chain.tokens.end(), tokens.begin(), tokens.end());
    }
    chains_.push_back(std::move(chain));
  }

  void DropBlock() {
    if (chains_.empty()) return;
    Chain& chain = chains_[random_.Below(chains_.size())];
    if (chain.nodes.empty()) return;
    texts_.index.Remove(chain.nodes.back(), PrefixIndex::RemoveKind::kEvicted);
    chain.nodes.pop_back();
    chain.tokens.resize(chain.tokens.size() - kTextBlock);
  }

  static bool Has(const Chain& chain, const TokenList& text) {
    return !std::ranges::search(chain.tokens, text).empty();
  }

  void Query() {
    const NodeId root = random_.Below(2) == 0 ? texts_.mine : texts_.theirs;
    TokenList asked(2 + random_.Below(12));
    for (TokenId& token : asked) token = static_cast<TokenId>(random_.Below(6));
    const auto match = texts_.table.Find(root, asked);
    const auto is_known = [&](const TokenList& text) {
      return std::ranges::any_of(
          chains_, [&](const Chain& chain) { return chain.root == root && Has(chain, text); });
    };
    if (!match) return;
    ++found_;
    TokenList drafted(1 + random_.Below(40));
    drafted.resize(texts_.table.Follow(*match, drafted));
    ASSERT_FALSE(drafted.empty());
    TokenList whole(asked.end() - std::min<ptrdiff_t>(match->num_equal, std::ssize(asked)),
                    asked.end());
    EXPECT_GE(whole.size(), 2u);
    whole.insert(whole.end(), drafted.begin(), drafted.end());
    EXPECT_TRUE(is_known(whole)) << "no text of this namespace has that";
  }

  Random random_{GetParam()};
  Texts texts_;
  std::vector<Chain> chains_;
  uint64_t found_ = 0;
};

TEST_P(ContinuationsModel, FindOnlyWhatIsThere) {
  SCOPED_TRACE(testing::Message() << "seed " << GetParam());
  for (int step = 0; step < 4000 && !HasFailure(); ++step) {
    const uint64_t draw = random_.Below(10);
    if (draw < 2) {
      AddChain();
    } else if (draw < 5) {
      DropBlock();
    } else {
      Query();
    }
  }
  EXPECT_GT(found_, 100u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ContinuationsModel, testing::Range<uint64_t>(1, 7));

}  // namespace
}  // namespace kvasir
