#include "policy/lru.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvasir {
namespace {

class LruTest : public testing::Test {
 protected:
  void Insert(uint32_t id, uint32_t ns, uint64_t last_use) {
    lru_.OnInserted(BlockId{id}, {.ns = NamespaceId{ns}, .group = LayerGroupId{0}});
    Release(id, ns, last_use);
  }
  void Release(uint32_t id, uint32_t ns, uint64_t last_use) {
    lru_.OnEvictable(BlockId{id},
                     {.ns = NamespaceId{ns}, .group = LayerGroupId{0}, .last_use = last_use});
  }
  std::vector<uint32_t> Order(const EvictionScope& scope) {
    std::vector<uint32_t> order;
    while (const auto victim = lru_.Victim(scope)) {
      order.push_back(static_cast<uint32_t>(*victim));
      lru_.OnEvicted(*victim);
    }
    return order;
  }

  Lru lru_{EvictionLimits{.num_blocks = 8, .num_namespaces = 3, .num_groups = 1}};
};

TEST_F(LruTest, TakesTheBlockThatWasUsedLongestAgo) {
  Insert(2, 0, 1);
  Insert(0, 1, 2);
  Insert(3, 2, 3);
  Insert(1, 0, 4);
  lru_.OnHeld(BlockId{0});
  Release(0, 1, 5);
  EXPECT_EQ(Order({}), (std::vector<uint32_t>{2, 3, 1, 0}));
}

TEST_F(LruTest, PutsABlockThatWaitedForItsSuccessorsWhereItsLastUseSays) {
  Insert(5, 0, 20);
  Insert(6, 0, 30);
  Insert(7, 0, 10);
  EXPECT_EQ(Order({}), (std::vector<uint32_t>{7, 5, 6}));
}

TEST_F(LruTest, KeepsItsOrderWithinTheChosenNamespaces) {
  for (uint32_t i = 0; i < 6; ++i) Insert(i, i % 3, 10 - i);
  const std::vector<NamespaceId> chosen{NamespaceId{2}, NamespaceId{0}};
  EXPECT_EQ(Order({.namespaces = chosen}), (std::vector<uint32_t>{5, 3, 2, 0}));
  EXPECT_EQ(Order({}), (std::vector<uint32_t>{4, 1}));
}

}  // namespace
}  // namespace kvasir
