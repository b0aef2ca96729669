#include "cache/source_key.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvasir {
namespace {

constexpr uint32_t kSourceBlock = 8;
constexpr uint64_t kAllHash = ~uint64_t{0};
using SourceIds = std::vector<TokenId>;

SourceIds AllNodes(const SourceKey& key) {
  SourceIds ids;
  for (uint32_t i = 0; i < key.num_nodes(); ++i) {
    ids.insert(ids.end(), key.node(i).begin(), key.node(i).end());
  }
  return ids;
}

// Returns all lists of 1 to `most` ids that are 0 or 1.
std::vector<SourceIds> ShortSources(size_t most) {
  std::vector<SourceIds> all;
  for (size_t size = 1; size <= most; ++size) {
    for (uint32_t bits = 0; bits < 1u << size; ++bits) {
      SourceIds ids;
      for (size_t i = 0; i < size; ++i) ids.push_back(bits >> i & 1);
      all.push_back(ids);
    }
  }
  return all;
}

// Even where all hashes are equal.
TEST(SourceKey, NoKeyIsTheBeginningOfAnotherOne) {
  std::set<SourceIds> keys;
  size_t num_sources = 0;
  for (const SourceIds& ids : ShortSources(6)) {
    for (const uint32_t tokens : {0, 1, 6, 7, 8, 9, 16, 17}) {
      const SourceKey key({ids, tokens}, kSourceBlock, /*seed=*/1, /*hash_mask=*/0);
      ++num_sources;
      keys.insert(AllNodes(key));
    }
  }
  EXPECT_EQ(keys.size(), num_sources) << "two sources have one key";
  // In their order a key's beginnings stand right before it.
  for (auto one = keys.begin(); std::next(one) != keys.end(); ++one) {
    const auto& next = *std::next(one);
    EXPECT_FALSE(one->size() <= next.size() && std::equal(one->begin(), one->end(), next.begin()));
  }
}

TEST(SourceKey, SaysItsSizesAtBothEnds) {
  for (const SourceIds& ids : ShortSources(5)) {
    for (const uint32_t tokens : {0, 3, 8, 9, 40}) {
      const SourceKey key({ids, tokens}, kSourceBlock, 1, kAllHash);
      ASSERT_GE(key.num_nodes() * kSourceBlock, tokens) << "each block of K and V has a node";
      EXPECT_TRUE(SourceKey::IsFirstNode(key.node(0)));
      EXPECT_EQ(SourceKey::NumNodes(key.node(0)), key.num_nodes());
      EXPECT_EQ(SourceKey::TokensOf(key.node(key.num_nodes() - 1)), tokens);
    }
  }
  EXPECT_FALSE(SourceKey::IsFirstNode(SourceIds(kSourceBlock)));
}

TEST(SourceKey, SourcesThatBeginAlikeDifferInTheFirstNode) {
  const SourceIds one(100, 7);
  SourceIds other = one;
  other.back() = 8;
  const SourceKey key({one, 100}, kSourceBlock, 1, kAllHash);
  const SourceKey another({other, 100}, kSourceBlock, 1, kAllHash);
  EXPECT_FALSE(std::ranges::equal(key.node(0), another.node(0)));
  EXPECT_TRUE(SourceKey::SameSizes(key.node(0), another.node(0)));
  const SourceKey fewer({one, 99}, kSourceBlock, 1, kAllHash);
  EXPECT_FALSE(SourceKey::SameSizes(key.node(0), fewer.node(0)));
  const SourceKey seeded({one, 100}, kSourceBlock, 2, kAllHash);
  EXPECT_FALSE(std::ranges::equal(key.node(0), seeded.node(0))) << "the seed is secret";
}

TEST(SourceKey, IsFoundWhereAllItsNodesAre) {
  PrefixIndex index({.num_blocks = 16, .block_tokens = kSourceBlock, .num_nodes = 16, .seed = 42});
  const NodeId root = index.AddRoot({});
  const SourceIds ids(20, 7);
  const SourceKey key({ids, 20}, kSourceBlock, 1, kAllHash);
  ASSERT_EQ(key.num_nodes(), 4u);
  NodeId node = root;
  for (uint32_t i = 0; i < key.num_nodes(); ++i) {
    EXPECT_FALSE(FindSource(index, root, key)) << i;
    node = index.Insert(node, key.node(i));
  }
  EXPECT_EQ(FindSource(index, root, key), node);
  const SourceKey other({SourceIds(20, 8), 20}, kSourceBlock, 1, kAllHash);
  EXPECT_FALSE(FindSource(index, root, other));
}

TEST(PackBytes, DifferentListsOfBytesNeverGiveTheSameIds) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; texts[i].size() < 5; ++i) {
    for (const char c : {'\0', 'a'}) texts.push_back(texts[i] + c);
  }
  const auto packed = [](const std::string& text) {
    return PackBytes(std::as_bytes(std::span(text)));
  };
  EXPECT_EQ(packed("abcde"), (SourceIds{5, 0, 0x64636261, 0x65}));
  std::set<SourceIds> joined;
  for (const std::string& one : texts) {
    for (const std::string& other : texts) {
      SourceIds ids = packed(one);
      const SourceIds more = packed(other);
      ids.insert(ids.end(), more.begin(), more.end());
      EXPECT_TRUE(joined.insert(ids).second);
    }
  }
  for (const std::string& text : texts) {
    EXPECT_TRUE(joined.insert(packed(text)).second) << "one alone";
  }
}

}  // namespace
}  // namespace kvasir
