#include "policy/eviction_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/random.h"

namespace kvasir {
namespace {

// section, group, namespace, order, block
using Entry = std::tuple<uint32_t, uint32_t, uint32_t, uint64_t, uint32_t>;

TEST(EvictionQueue, FindsTheFirstOfAnyScopeAsASortedListDoes) {
  constexpr EvictionLimits kLimits{.num_blocks = 60, .num_namespaces = 7, .num_groups = 3};
  constexpr uint32_t kSections = 2;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random.Below(n)); };
    EvictionQueue queue(kLimits, kSections);
    EXPECT_EQ(queue.allocated_bytes(), EvictionQueue::BytesFor(kLimits, kSections));
    std::set<Entry> entries;
    for (int step = 0; step < 3000; ++step) {
      const uint32_t id = below(kLimits.num_blocks);
      const auto known =
          std::ranges::find(entries, id, [](const Entry& e) { return std::get<4>(e); });
      ASSERT_EQ(queue.contains(BlockId{id}), known != entries.end());
      if (known != entries.end()) {
        queue.Remove(BlockId{id});
        entries.erase(known);
      } else {
        const Entry entry{below(kSections), below(3), below(7), random.Below(50), id};
        entries.insert(entry);
        queue.Insert(BlockId{id}, std::get<0>(entry), NamespaceId{std::get<2>(entry)},
                     LayerGroupId{std::get<1>(entry)}, std::get<3>(entry));
      }
      queue.CheckInvariants();
      ASSERT_EQ(queue.size(), entries.size());

      std::vector<NamespaceId> namespaces;
      std::vector<LayerGroupId> groups;
      for (uint32_t ns = 0; ns < 7; ++ns) {
        if (below(2) == 0) namespaces.push_back(NamespaceId{ns});
      }
      for (uint32_t group = 0; group < 3; ++group) {
        if (below(2) == 0) groups.push_back(LayerGroupId{group});
      }
      EvictionScope scope;
      if (below(2) == 0) scope.namespaces = namespaces;
      if (below(2) == 0) scope.groups = groups;
      const uint32_t section = below(kSections);
      std::optional<std::pair<uint64_t, uint32_t>> first;
      for (const auto& [in, group, ns, order, block] : entries) {
        const bool chosen =
            in == section &&
            (!scope.groups || std::ranges::count(groups, LayerGroupId{group}) > 0) &&
            (!scope.namespaces || std::ranges::count(namespaces, NamespaceId{ns}) > 0);
        if (chosen && (!first || std::pair(order, block) < *first)) first = {order, block};
      }
      ASSERT_EQ(queue.First(section, scope),
                first ? std::optional(BlockId{first->second}) : std::nullopt);
    }
  }
}

TEST(EvictionQueueDeathTest, ABlockStandsInItOnce) {
  EvictionQueue queue({.num_blocks = 2, .num_namespaces = 1, .num_groups = 1}, 1);
  queue.Insert(BlockId{0}, 0, NamespaceId{0}, LayerGroupId{0}, 5);
  EXPECT_DEATH(queue.Insert(BlockId{0}, 0, NamespaceId{0}, LayerGroupId{0}, 6), "contains");
  EXPECT_DEATH(queue.Remove(BlockId{1}), "contains");
  EXPECT_DEATH(queue.Insert(BlockId{1}, 0, NamespaceId{1}, LayerGroupId{0}, 6), "num_namespaces");
}

}  // namespace
}  // namespace kvasir
