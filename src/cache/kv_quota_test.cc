// Quotas: what a guarantee keeps from others, what a maximum costs its own owner.
#include <gtest/gtest.h>

#include "base/random.h"
#include "cache/cache_driver_for_test.h"

namespace kvasir {
namespace {

class KvQuotas : public KvCacheTest {
 protected:
  void MakeOwners(uint32_t num_blocks, std::initializer_list<KvQuota> quotas,
                  const std::vector<uint32_t>& windows = {0}) {
    owners_.clear();
    Make(num_blocks, LayoutOf(windows));
    for (const KvQuota& quota : quotas) {
      const std::string name = std::string(1, static_cast<char>('a' + owners_.size()));
      const AccountId account = cache().EnterAccount(name);
      cache().SetQuota(account, quota);
      owners_.push_back({cache().EnterNamespace(name, IdentityNamed(1)), account});
    }
  }
  const KvAccounts::Account& Of(size_t owner) const {
    return cache_of().accounts().of(owners_[owner].account);
  }
  KvCache& cache_of() const { return const_cast<KvQuotas*>(this)->cache(); }
  MatchResult Match(size_t owner, const Tokens& prompt) {
    return cache().Match(owners_[owner].ns, prompt, {.account = owners_[owner].account});
  }
  Result<Reservation> Reserve(size_t owner, const Tokens& prompt, uint32_t tokens) {
    MatchResult match = Match(owner, prompt);
    return cache().Reserve(match, {static_cast<uint32_t>(prompt.size()), tokens});
  }
  // Computes and publishes a prompt; its blocks are idle afterwards.
  bool Leave(size_t owner, const Tokens& prompt) {
    MatchResult match = Match(owner, prompt);
    const uint32_t reused = match.num_reused();
    auto reservation = cache().Reserve(
        match, {static_cast<uint32_t>(prompt.size()), static_cast<uint32_t>(prompt.size())});
    if (!reservation) return false;
    KvSequence sequence = cache().Fetch(std::move(match), 1024, *reservation);
    EXPECT_TRUE(
        driver_->Append(sequence, 7, std::span(prompt).subspan(reused), KvCache::CommitKind::kEnd));
    cache().CheckInvariants();
    return true;
  }

  struct Owner {
    NamespaceId ns;
    AccountId account;
  };
  std::vector<Owner> owners_;
};

TEST_F(KvQuotas, AGuaranteeKeepsIdleBlocksFromOthersAndNotFromItsOwner) {
  MakeOwners(10, {{.guaranteed = 4}, {}});
  ASSERT_TRUE(Leave(0, TokensFrom(1, 16 * 6)));
  EXPECT_EQ(Of(0).idle, 6u);
  EXPECT_FALSE(Reserve(1, TokensFrom(2, 1), 16 * 7)) << "6 blocks are not protected";
  ASSERT_TRUE(Leave(1, TokensFrom(2, 16 * 6)));
  EXPECT_EQ(Of(0).idle, 4u);
  EXPECT_EQ(Match(0, TokensFrom(1, 16 * 6)).num_reused(), 64u) << "the beginning stays";
  ASSERT_TRUE(Leave(1, TokensFrom(3, 16 * 6)));
  EXPECT_EQ(Of(0).idle, 4u);
  EXPECT_EQ(cache().counters().quota_evicted_blocks, 0u) << "the pool had no other room";
  ASSERT_TRUE(Leave(0, TokensFrom(4, 16 * 10)));
  EXPECT_EQ(Of(0).idle, 10u);
}

TEST_F(KvQuotas, AMaximumTakesTheOwnersBlocksWhileOthersAreFree) {
  MakeOwners(20, {{.guaranteed = 0, .max = 5}, {}});
  ASSERT_TRUE(Leave(1, TokensFrom(1, 16 * 8)));
  ASSERT_TRUE(Leave(0, TokensFrom(2, 16 * 5)));
  EXPECT_EQ(Of(0).idle, 5u);
  const auto refused = Reserve(0, TokensFrom(3, 1), 16 * 6);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().cause, Cause::kKvMax);
  ASSERT_TRUE(Leave(0, TokensFrom(3, 16 * 4)));
  EXPECT_EQ(Of(0).held(), 5u);
  EXPECT_EQ(Of(1).idle, 8u);
  EXPECT_EQ(cache().counters().quota_evicted_blocks, 4u);
  EXPECT_EQ(cache().counters().evicted_blocks, 4u);
  EXPECT_EQ(cache().counters().quota_evicted_tokens, 64u);
}

TEST_F(KvQuotas, AGuaranteeThatOthersHaveReservedHoldsWhenTheyReleaseIt) {
  MakeOwners(10, {{}, {}});
  ASSERT_TRUE(Leave(0, TokensFrom(1, 16 * 6)));
  auto others = Reserve(1, TokensFrom(2, 1), 16 * 8);
  ASSERT_TRUE(others);
  cache().SetQuota(owners_[0].account, {.guaranteed = 5});
  EXPECT_EQ(Of(0).guaranteed, 2u) << "8 of 10 blocks are reserved";
  others->Release();
  EXPECT_FALSE(Reserve(1, TokensFrom(2, 1), 16 * 6));
  EXPECT_EQ(Of(0).guaranteed, 5u);
  cache().SetQuota(owners_[0].account, {});
  EXPECT_TRUE(Reserve(1, TokensFrom(2, 1), 16 * 10));
}

TEST_F(KvQuotas, AccountsWithoutBlocksAndQuotasAreRecycled) {
  Make(8);
  const size_t most = OptionsFor(8).num_namespaces + 1;
  const AccountId kept = cache().EnterAccount("kept");
  cache().SetQuota(kept, {.guaranteed = 1});
  for (size_t i = 0; i < 3 * most; ++i) {
    EXPECT_NE(cache().EnterAccount("tenant " + std::to_string(i)), kNobody);
  }
  EXPECT_EQ(cache().EnterAccount("kept"), kept);
  EXPECT_EQ(cache().accounts().size(), most);
}

TEST_F(KvQuotas, AQuotaFindsAnAccountWhereAllHaveBlocks) {
  const size_t most = OptionsFor(8).num_namespaces;
  Make(static_cast<uint32_t>(2 * most));
  owners_.clear();
  for (size_t i = 0; i < most; ++i) {
    const std::string name = "tenant " + std::to_string(i);
    owners_.push_back({cache().EnterNamespace(name, IdentityNamed(1)), cache().EnterAccount(name)});
    ASSERT_TRUE(Leave(i, TokensFrom(static_cast<TokenId>(i), i == 3 ? 16 : 32)));
  }
  cache().SetQuota(owners_[3].account, {.guaranteed = 1});
  EXPECT_EQ(cache().EnterAccount("late"), kNobody);
  const AccountId late = cache().MakeAccount("late");
  ASSERT_NE(late, kNobody);
  EXPECT_NE(late, owners_[3].account) << "it has a quota";
  cache().CheckInvariants();
  EXPECT_EQ(cache().accounts().of(late).held(), 0u);
  EXPECT_EQ(cache().MakeAccount("late"), late);
  EXPECT_EQ(Of(3).idle, 1u);
}

// Random prompts of three owners: none has more than its maximum, none loses guaranteed blocks to
// another one, and each can draw what is reserved for it.
TEST_F(KvQuotas, HoldInRandomSchedules) {
  for (const std::vector<uint32_t>& windows : {std::vector<uint32_t>{0}, {0, 20}, {20}}) {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      SCOPED_TRACE(testing::Message() << windows.size() << " groups, seed " << seed);
      Random random(seed);
      const auto draw = [&](uint32_t most) {
        return static_cast<uint32_t>(random.Below(most + 1));
      };
      const auto quota = [&] {
        KvQuota drawn{.guaranteed = draw(10)};
        if (draw(1) == 0) drawn.max = drawn.guaranteed + 4 + draw(10);
        return drawn;
      };
      MakeOwners(32, {quota(), quota(), {}}, windows);
      struct Running {
        size_t owner;
        Reservation reservation;
        KvSequence sequence;
        uint32_t most;
      };
      std::vector<Running> running;
      // To less than it used: what a sequence gave back then is not reserved again (GiveBack).
      bool is_lowered[3] = {};
      uint32_t refused = 0, drawn = 0;
      for (uint32_t step = 0; step < 400 && !HasFailure(); ++step) {
        const size_t owner = draw(2);
        uint32_t held[3];
        bool fits[3];  // or its maximum was lowered below what it uses
        for (size_t i = 0; i < 3; ++i) {
          held[i] = Of(i).held();
          fits[i] = Of(i).used() <= Of(i).quota.max;
        }
        const uint32_t kind = draw(9);
        if (kind < 4) {
          const uint32_t first = draw(5) + 100 * owner;  // drawn first with each compiler
          const Tokens prompt = TokensFrom(first, 1 + draw(70));
          MatchResult match = Match(owner, prompt);
          const uint32_t reused = match.num_reused();
          const uint32_t most = static_cast<uint32_t>(prompt.size()) + draw(60);
          auto reservation = cache().Reserve(match, {static_cast<uint32_t>(prompt.size()), most});
          if (reservation) {
            KvSequence sequence = cache().Fetch(std::move(match), most, *reservation);
            ASSERT_TRUE(driver_->Append(sequence, 7, std::span(prompt).subspan(reused),
                                        KvCache::CommitKind::kEnd));
            running.push_back({owner, std::move(*reservation), std::move(sequence), most});
          }
          refused += !reservation;
        } else if (kind < 8 && !running.empty()) {
          Running& one = running[draw(static_cast<uint32_t>(running.size()) - 1)];
          const uint32_t left = one.most - one.sequence.num_tokens();
          if (left > 0) {
            const bool drawn_all =
                driver_->Append(one.sequence, 7, TokensFrom(1000 + step, 1 + draw(left - 1)));
            ASSERT_TRUE(drawn_all || is_lowered[one.owner]) << "it is reserved";
            ++drawn;
          }
        } else if (kind == 8 && !running.empty()) {
          running.erase(running.begin() + draw(static_cast<uint32_t>(running.size()) - 1));
        } else if (draw(9) == 0) {
          cache().SetQuota(owners_[owner].account, quota());
          is_lowered[owner] |= Of(owner).used() > Of(owner).quota.max;
          continue;
        }
        for (size_t i = 0; i < 3; ++i) {
          const KvAccounts::Account& account = Of(i);
          if (fits[i]) {
            ASSERT_LE(account.held(), std::max(held[i], account.quota.max));
          }
          if (i == owner || kind >= 4) continue;
          const auto more = static_cast<uint32_t>(windows.size()) - 1;  // as SetQuota says
          const uint32_t kept = account.guaranteed - std::min(account.guaranteed, more);
          ASSERT_GE(account.held(), std::min(held[i], kept)) << "of " << i;
        }
        if (step % 20 == 0) cache().CheckInvariants();
      }
      EXPECT_GT(refused, 0u);
      EXPECT_GT(drawn, 50u);
    }
  }
}

}  // namespace
}  // namespace kvasir
