#include "cache/kv_accounts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

Digest OwnerNumber(uint8_t number) {
  Digest owner;
  owner.fill(number);
  return owner;
}

// The moves of blocks that the accounts got, counted anew for each question.
struct AccountsTwin {
  struct Owner {
    int64_t pinned = 0, idle = 0, reserved = 0, extra = 0;
  };

  int64_t Protected(size_t i, const KvAccounts& accounts) const {
    const int64_t guaranteed = accounts.of(AccountId(i + 1)).guaranteed;
    return std::min(owners[i].idle, std::max<int64_t>(0, guaranteed - owners[i].pinned));
  }
  // Returns what is free or idle beyond what was promised; `except`: to others than this owner.
  int64_t Room(const KvAccounts& accounts, std::optional<size_t> except = {}) const {
    int64_t room = num_blocks;
    for (size_t i = 0; i < owners.size(); ++i) {
      const Owner& one = owners[i];
      room -= one.pinned + one.reserved + one.extra;
      if (i == except) continue;
      room -= std::max<int64_t>(0, Protected(i, accounts) - one.reserved);
    }
    return room;
  }
  int64_t num_free() const {
    int64_t free = num_blocks;
    for (const Owner& one : owners) free -= one.pinned + one.idle;
    return free;
  }

  int64_t num_blocks;
  std::vector<Owner> owners;
};

// Accounts of three owners, and their twin.
class AccountsPair {
 public:
  AccountsPair(uint32_t num_blocks, uint64_t seed)
      : accounts(3, num_blocks), twin{num_blocks, std::vector<AccountsTwin::Owner>(3)} {
    for (uint8_t i = 0; i < 3; ++i) EXPECT_EQ(accounts.Enter(OwnerNumber(i)), IdOf(i));
    random.emplace(seed);
  }
  static AccountId IdOf(size_t i) { return AccountId(i + 1); }
  int64_t Draw(int64_t most) {
    return static_cast<int64_t>(random->Below(static_cast<uint64_t>(most) + 1));
  }

  // Gives an owner a block that is reserved for it. Returns false where no block is free.
  bool Take(size_t i) {
    accounts.Release(IdOf(i), 1);
    --twin.owners[i].reserved;
    if (accounts.must_take_own(IdOf(i))) Reclaim(i);
    if (twin.num_free() == 0) {
      size_t victim = 0;
      const auto may_leave = [&](size_t v) {
        return twin.owners[v].idle > 0 && (v == i || accounts.may_lose(IdOf(v)));
      };
      while (victim < twin.owners.size() && !may_leave(victim)) ++victim;
      if (victim == twin.owners.size()) return false;
      Reclaim(victim);
    }
    accounts.OnAllocated(IdOf(i));
    ++twin.owners[i].pinned;
    return true;
  }
  void Reclaim(size_t i) {
    accounts.OnReclaimed(IdOf(i));
    --twin.owners[i].idle;
  }

  // Makes a random move of an owner.
  void Move(size_t i) {
    AccountsTwin::Owner& one = twin.owners[i];
    const int64_t kind = Draw(9);
    if (kind < 3) {
      const int64_t count = Draw(accounts.available(IdOf(i)));
      accounts.Reserve(IdOf(i), static_cast<uint32_t>(count));
      one.reserved += count;
    } else if (kind == 3) {
      const int64_t count = Draw(one.reserved);
      accounts.Release(IdOf(i), static_cast<uint32_t>(count));
      one.reserved -= count;
    } else if (kind < 6 && one.reserved > 0) {
      ASSERT_TRUE(Take(i)) << "it was reserved";
    } else if (kind == 6 && one.pinned > 0) {
      const bool is_freed = Draw(2) == 0;
      is_freed ? accounts.OnFreed(IdOf(i)) : accounts.OnIdle(IdOf(i));
      --one.pinned;
      one.idle += is_freed ? 0 : 1;
    } else if (kind == 7 && one.idle > 0 && one.reserved > 0) {
      accounts.Release(IdOf(i), 1);
      accounts.OnPinned(IdOf(i));
      --one.reserved, --one.idle, ++one.pinned;
    } else if (kind == 8 && (one.extra > 0 || twin.Room(accounts) > 0)) {
      const int32_t change = one.extra > 0 && Draw(1) == 0 ? -1 : twin.Room(accounts) > 0 ? 1 : 0;
      accounts.OnExtraPins(IdOf(i), change);
      one.extra += change;
    } else if (kind == 9 && Draw(3) == 0) {
      KvQuota quota{.guaranteed = static_cast<uint32_t>(Draw(8))};
      if (Draw(1) == 0) quota.max = quota.guaranteed + static_cast<uint32_t>(Draw(8));
      accounts.SetQuota(IdOf(i), quota);
    }
    if (Draw(4) == 0) accounts.ApplyGuarantees();
  }

  // Compares each answer with the twin's.
  void Compare() const {
    accounts.CheckInvariants();
    ASSERT_GE(twin.Room(accounts), 0);
    int64_t reserved = 0;
    for (size_t i = 0; i < twin.owners.size(); ++i) {
      const AccountsTwin::Owner& one = twin.owners[i];
      const KvAccounts::Account& account = accounts.of(IdOf(i));
      reserved += one.reserved;
      ASSERT_LE(account.guaranteed, account.quota.guaranteed);
      const int64_t used = one.pinned + one.reserved + one.extra;
      const int64_t room = twin.Room(accounts, i);
      ASSERT_EQ(accounts.unreserved(IdOf(i)), room);
      const int64_t left = std::max<int64_t>(0, int64_t{account.quota.max} - used);
      ASSERT_EQ(accounts.available(IdOf(i)), std::min(room, left));
      ASSERT_EQ(accounts.may_lose(IdOf(i)), one.idle > twin.Protected(i, accounts));
      ASSERT_EQ(accounts.is_above_guarantee(IdOf(i)), used > account.quota.guaranteed);
      AccountsTwin after = twin;
      ++after.owners[i].pinned;
      const bool has_most = one.pinned + one.idle >= int64_t{account.quota.max};
      ASSERT_EQ(accounts.must_take_own(IdOf(i)),
                one.idle > 0 && (has_most || after.Room(accounts) < 0));
    }
    ASSERT_EQ(accounts.reserved(), reserved);
  }
  // Draws all that is reserved, in a random order. REQUIRES: this is a copy.
  void DrawAll() {
    for (;;) {
      std::vector<size_t> left;
      for (size_t i = 0; i < twin.owners.size(); ++i) {
        if (twin.owners[i].reserved > 0) left.push_back(i);
      }
      if (left.empty()) return;
      ASSERT_TRUE(Take(left[static_cast<size_t>(Draw(static_cast<int64_t>(left.size()) - 1))]));
    }
  }

  KvAccounts accounts;
  AccountsTwin twin;
  std::optional<Random> random;
};

// What is reserved can be drawn by each owner in any order, whatever came before.
TEST(KvAccounts, EqualATwinThatCountsAnewInRandomMoves) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    AccountsPair pair(24, seed);
    for (int step = 0; step < 300; ++step) {
      pair.Move(static_cast<size_t>(pair.Draw(2)));
      pair.Compare();
      if (testing::Test::HasFatalFailure()) return;
      if (step % 5 > 0) continue;
      AccountsPair copy(pair);
      copy.DrawAll();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(KvAccounts, ANewOwnerTakesThePlaceOfOneWithoutBlocksAndQuota) {
  KvAccounts accounts(2, 10);
  const AccountId first = accounts.Enter(OwnerNumber(1)), second = accounts.Enter(OwnerNumber(2));
  EXPECT_EQ(accounts.Enter(OwnerNumber(1)), first);
  accounts.SetQuota(first, {.guaranteed = 1});
  accounts.Reserve(second, 1);
  EXPECT_EQ(accounts.Enter(OwnerNumber(3)), kNobody);
  accounts.Release(second, 1);
  EXPECT_EQ(accounts.Enter(OwnerNumber(3)), second);
  EXPECT_EQ(accounts.of(second).owner, OwnerNumber(3));
  EXPECT_EQ(accounts.Enter(OwnerNumber(1)), first) << "it has a quota";
}

TEST(KvAccounts, KnowWhetherAnyOwnerHasAQuota) {
  KvAccounts accounts(2, 10);
  const AccountId owner = accounts.Enter(OwnerNumber(1));
  EXPECT_FALSE(accounts.has_quotas());
  accounts.SetQuota(owner, {.guaranteed = 0, .max = 5});
  EXPECT_TRUE(accounts.has_quotas());
  accounts.SetQuota(owner, {});
  EXPECT_FALSE(accounts.has_quotas());
}

}  // namespace
}  // namespace kvasir
