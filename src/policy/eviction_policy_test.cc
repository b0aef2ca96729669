// What every EvictionPolicy must do, whatever its order; then what is special about each.
#include "policy/eviction_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/random.h"
#include "policy/lru.h"

namespace kvasir {
namespace {

constexpr uint32_t kBlocks = 24;

struct PolicyCase {
  const char* name;
  std::function<std::unique_ptr<EvictionPolicy>(uint32_t num_blocks)> make;
  std::function<uint64_t(uint32_t num_blocks)> bytes_for;
};

class EvictionPolicyConformance : public testing::TestWithParam<PolicyCase> {
 protected:
  std::unique_ptr<EvictionPolicy> policy_ = GetParam().make(kBlocks);
};

bool Any(BlockId) { return true; }

TEST_P(EvictionPolicyConformance, HasNoVictimWhenNothingIsIdle) {
  EXPECT_EQ(policy_->Victim(Any), std::nullopt);
  policy_->OnIdle(BlockId{3});
  policy_->OnBusy(BlockId{3});
  EXPECT_EQ(policy_->Victim(Any), std::nullopt);
}

TEST_P(EvictionPolicyConformance, AllocatesWhatIsPlanned) {
  EXPECT_EQ(policy_->allocated_bytes(), GetParam().bytes_for(kBlocks));
}

TEST_P(EvictionPolicyConformance, EvictsEveryIdleBlockExactlyOnce) {
  for (uint32_t i = 0; i < kBlocks; ++i) policy_->OnIdle(BlockId{i});
  std::set<BlockId> gone;
  while (const auto victim = policy_->Victim(Any)) {
    EXPECT_TRUE(gone.insert(*victim).second);
    policy_->OnBusy(*victim);
  }
  EXPECT_EQ(gone.size(), kBlocks);
}

TEST_P(EvictionPolicyConformance, NamesOnlyIdleEvictableBlocksUnderRandomUse) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    auto policy = GetParam().make(kBlocks);
    std::set<BlockId> idle;
    for (int step = 0; step < 2000; ++step) {
      const BlockId id{static_cast<uint32_t>(random.Below(kBlocks))};
      if (idle.contains(id)) {
        policy->OnBusy(id);
        idle.erase(id);
      } else {
        policy->OnIdle(id);
        idle.insert(id);
      }
      const uint64_t allowed = random.Bits();
      const auto evictable = [&](BlockId b) { return (allowed >> static_cast<uint32_t>(b)) & 1; };
      const bool exists = std::ranges::any_of(idle, evictable);
      const auto victim = policy->Victim(evictable);
      ASSERT_EQ(victim.has_value(), exists);
      ASSERT_TRUE(!victim || (idle.contains(*victim) && evictable(*victim)));
      ASSERT_EQ(policy->num_idle(), idle.size());
      policy->CheckInvariants();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EvictionPolicyConformance,
                         testing::Values(PolicyCase{
                             "Lru", [](uint32_t n) { return std::make_unique<Lru>(n); },
                             Lru::BytesFor}),
                         [](const auto& info) { return info.param.name; });

TEST(Lru, TakesTheBlockThatHasBeenIdleLongest) {
  Lru lru(4);
  for (uint32_t id : {2u, 0u, 3u, 1u}) lru.OnIdle(BlockId{id});
  lru.OnBusy(BlockId{0});
  lru.OnIdle(BlockId{0});
  std::vector<uint32_t> order;
  while (const auto victim = lru.Victim(Any)) {
    order.push_back(static_cast<uint32_t>(*victim));
    lru.OnBusy(*victim);
  }
  EXPECT_EQ(order, (std::vector<uint32_t>{2, 3, 1, 0}));
}

}  // namespace
}  // namespace kvasir
