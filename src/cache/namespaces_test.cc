#include "cache/namespaces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cache/cache_driver_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kNumNamespaces = 12;

class NamespacesTest : public testing::Test {
 protected:
  // Returns nothing where there is no room.
  std::optional<NamespaceId> Enter(std::string_view owner,
                                   std::optional<std::string_view> salt = std::nullopt,
                                   uint8_t identity = 1, uint8_t plain = 0) {
    Namespace wanted = Namespaces::Named(owner, IdentityNamed(identity), salt);
    if (plain > 0) wanted.plain = IdentityNamed(plain);
    wanted.account = accounts_.Enter(wanted.owner);
    if (const auto ns = spaces_.Reenter(wanted)) return ns;
    const auto place = spaces_.PlaceFor(wanted);
    if (!place) return std::nullopt;
    const NodeId root = place->old ? spaces_.Of(*place->old).root : index_.AddRoot({});
    return spaces_.Put(*place, wanted, root);
  }
  NodeId Fill(NamespaceId ns) {  // a namespace with a block is not recycled
    return index_.Insert(spaces_.Of(ns).root, TokensFrom(static_cast<uint64_t>(ns), 16));
  }

  PrefixIndex index_{{.num_blocks = 32,
                      .block_tokens = 16,
                      .num_nodes = 32,
                      .num_roots = kNumNamespaces + 1,
                      .seed = 5}};
  KvAccounts accounts_{kNumNamespaces, 32};
  static constexpr uint32_t kMaxIdentities = 5;
  Namespaces spaces_{
      {.all = kNumNamespaces, .of_owner = kMaxIdentities}, index_.AddRoot({}), index_, accounts_};
};

TEST_F(NamespacesTest, FindsANamespaceByOwnerIdentityAndSalt) {
  const auto plain = Enter("alice"), salted = Enter("alice", "a"), bob = Enter("bob");
  ASSERT_TRUE(plain && salted && bob);
  EXPECT_NE(plain, salted);
  EXPECT_NE(plain, bob);
  EXPECT_EQ(Enter("alice"), plain);
  EXPECT_EQ(spaces_.Find(Namespaces::Named("alice", IdentityNamed(1), "a")), salted);
  EXPECT_FALSE(spaces_.Find(Namespaces::Named("alice", IdentityNamed(2), "a")));
  EXPECT_FALSE(spaces_.Find(Namespaces::Named("alice", IdentityNamed(1), "")));
  EXPECT_TRUE(spaces_.Of(*plain).owner == spaces_.Of(*salted).owner);
  EXPECT_FALSE(spaces_.Of(*plain).HasOwnerOf(spaces_.Of(*salted)));
  EXPECT_EQ(spaces_.allocated_bytes(), Namespaces::BytesFor(kNumNamespaces));
}

TEST_F(NamespacesTest, RecyclesTheOldestThatIsEmptyAndUnusedButNotTheLastEntered) {
  std::vector<NamespaceId> entered;
  for (uint32_t i = 0; i < kNumNamespaces; ++i)
    entered.push_back(*Enter("owner" + std::to_string(i)));
  spaces_.Of(entered[0]).users = 1;
  Fill(entered[1]);
  EXPECT_EQ(Enter("late"), entered[2]);
  EXPECT_FALSE(spaces_.Find(Namespaces::Named("owner2", IdentityNamed(1), std::nullopt)));
  for (uint32_t i = 3; i + 1 < kNumNamespaces; ++i) Fill(entered[i]);
  EXPECT_EQ(Enter("later"), entered.back());  // "late" was entered last
  Fill(entered.back());
  Fill(entered[2]);
  EXPECT_FALSE(Enter("latest"));
}

TEST_F(NamespacesTest, ASaltGivesWayToANamespaceWithoutOne) {
  std::vector<NamespaceId> salted;
  for (uint32_t i = 0; i < Namespaces::kMaxSalts; ++i) {
    salted.push_back(*Enter("alice", "salt" + std::to_string(i)));
    Fill(salted.back());
  }
  EXPECT_FALSE(Enter("alice", "one more"));  // room, but not for this owner
  for (uint32_t i = 0; i < kNumNamespaces - Namespaces::kMaxSalts; ++i) {
    Fill(*Enter("owner" + std::to_string(i)));
  }
  EXPECT_FALSE(Enter("bob", "salt"));
  spaces_.Of(salted[0]).users = 1;
  const uint32_t epoch = ++spaces_.Of(salted[1]).epoch;
  EXPECT_EQ(Enter("bob"), salted[1]);
  EXPECT_EQ(spaces_.Of(salted[1]).epoch, epoch);  // holds from before stay stale
  accounts_.SetQuota(spaces_.Of(salted[2]).account, {.guaranteed = 1});
  EXPECT_FALSE(Enter("carol"));
}

// Clients choose scales of adapters freely, and each has an Identity.
TEST_F(NamespacesTest, BeyondItsIdentitiesAnOwnerLosesTheOldestOfItsOwnThatIsIdle) {
  const auto bob = *Enter("bob");
  std::vector<NamespaceId> entered;
  for (uint8_t i = 1; i <= kMaxIdentities; ++i) {
    entered.push_back(*Enter("alice", std::nullopt, i));
    Fill(entered.back());
  }
  Fill(bob);
  spaces_.Of(entered[0]).users = 1;
  EXPECT_EQ(Enter("alice", std::nullopt, 6), entered[1]) << "with its blocks, though there is room";
  EXPECT_EQ(Enter("alice", std::nullopt, 7), entered[2]);
  EXPECT_EQ(Enter("bob"), bob);
  for (const NamespaceId ns : entered) spaces_.Of(ns).users = 1;
  EXPECT_FALSE(Enter("alice", std::nullopt, 8)) << "all are in use";
  EXPECT_TRUE(Enter("carol", std::nullopt, 8));
}

// Salts times scales would leave no namespace to others.
TEST_F(NamespacesTest, SaltsWithAdaptersAreAsManyAsSaltsWithout) {
  std::vector<NamespaceId> entered;
  for (uint8_t i = 0; i < Namespaces::kMaxSalts; ++i) {
    entered.push_back(*Enter("alice", "a" + std::to_string(i), 2 + i, 1));
    Fill(entered.back());
  }
  const auto plain = *Enter("alice", "a0");
  EXPECT_TRUE(std::ranges::find(entered, plain) == entered.end()) << "it has no adapters";
  spaces_.Of(entered[0]).users = 1;
  EXPECT_EQ(Enter("alice", "b", 50, 1), entered[1]) << "with its blocks";
  for (const NamespaceId ns : entered) spaces_.Of(ns).users = 1;
  EXPECT_FALSE(Enter("alice", "c", 51, 1)) << "all are in use";
}

}  // namespace
}  // namespace kvasir
