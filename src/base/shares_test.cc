#include "base/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace kvasir {
namespace {

Digest Owner(uint8_t number) {
  Digest owner{};
  owner[0] = number;
  return owner;
}

TEST(Shares, OneNameOrNoneMayHaveAll) {
  for (const Shares::Weights& weights : {Shares::Weights(), Shares::Weights{{Owner(1), 2}}}) {
    Shares shares(10, 1);
    shares.SetWeights(weights);
    EXPECT_EQ(shares.kept_for(Owner(1)), 10u);
    EXPECT_TRUE(shares.Take(Owner(1), 10));
    EXPECT_FALSE(shares.Take(Owner(1), 1));
    EXPECT_FALSE(shares.Take(Owner(2), 1));
    shares.Give(Owner(1), 1);
    EXPECT_TRUE(shares.Take(Owner(2), 1));
  }
}

TEST(Shares, HalfIsKeptByWeightAndOneHasHalfOfTheRest) {
  Shares shares(1024, 1);
  shares.SetWeights({{Owner(1), 1}, {Owner(2), 3}, {Owner(3), 0.0001}});
  EXPECT_EQ(shares.kept_for(Owner(1)), 127u);
  EXPECT_EQ(shares.kept_for(Owner(2)), 383u);
  EXPECT_EQ(shares.kept_for(Owner(3)), 1u);
  const auto take_all = [&](uint8_t owner) {
    uint64_t taken = 0;
    while (shares.Take(Owner(owner), 1)) ++taken;
    return taken;
  };
  EXPECT_EQ(take_all(1), 127u + 257);  // of the other 513 half
  EXPECT_EQ(take_all(9), 256u);        // no owner's name: what is left of them
  EXPECT_EQ(take_all(2), 383u);
  EXPECT_EQ(take_all(3), 1u);
  EXPECT_EQ(shares.used(), 1024u);
  shares.Give(Owner(9), 1);
  EXPECT_FALSE(shares.Take(Owner(1), 1));  // it has its half
  EXPECT_TRUE(shares.Take(Owner(3), 1));
}

TEST(Shares, SayWhatFitsOnceAnOwnerHasGivenSomeBack) {
  Shares shares(100);
  ASSERT_TRUE(shares.Take(Owner(1), 60));
  ASSERT_TRUE(shares.Take(Owner(2), 20));
  EXPECT_TRUE(shares.Fits(Owner(1), 20, 0));
  EXPECT_FALSE(shares.Fits(Owner(1), 21, 0));
  EXPECT_TRUE(shares.Fits(Owner(1), 21, 1));
  EXPECT_TRUE(shares.Fits(Owner(1), 80, 60));
  EXPECT_FALSE(shares.Fits(Owner(1), 81, 99)) << "it has no more than 60";
  EXPECT_FALSE(shares.Fits(Owner(3), 21, 99));
  shares.SetWeights({{Owner(1), 1}, {Owner(2), 1}});  // 25 each, and 25 of the other 50
  EXPECT_FALSE(shares.Fits(Owner(1), 1, 0));
  EXPECT_TRUE(shares.Fits(Owner(1), 50, 60));
  EXPECT_FALSE(shares.Fits(Owner(1), 51, 60));
  EXPECT_EQ(shares.used(), 80u);
}

TEST(Shares, FewPlacesAreOneEach) {
  Shares shares(2, 1);
  shares.SetWeights({{Owner(1), 1}, {Owner(2), 1}});
  EXPECT_TRUE(shares.Take(Owner(1), 1));
  EXPECT_FALSE(shares.Take(Owner(1), 1));
  EXPECT_TRUE(shares.Take(Owner(2), 1));
}

TEST(Shares, WhatWasAddedBrieflyCountsFromItsEnd) {
  Shares shares(100);
  shares.SetWeights({{Owner(1), 1}, {Owner(2), 1}});
  ASSERT_TRUE(shares.Take(Owner(1), 50));
  shares.AddBriefly(Owner(1), 40);
  EXPECT_TRUE(shares.Take(Owner(2), 25));  // what is kept for it
  shares.Give(Owner(2), 25);
  shares.EndBrief(40);
  EXPECT_FALSE(shares.Take(Owner(2), 25));
  EXPECT_TRUE(shares.Take(Owner(2), 10));
}

// An owner may give what it has before the change ends that added it.
TEST(Shares, WhatIsKeptIsThereWhenWhatWasAddedBrieflyIsGiven) {
  Shares shares(100);
  shares.SetWeights({{Owner(1), 1}, {Owner(2), 1}});
  shares.AddBriefly(Owner(1), 40);
  shares.Give(Owner(1), 40);
  EXPECT_TRUE(shares.Take(Owner(2), 25));
  EXPECT_EQ(shares.used(), 25u);
}

// Random calls against the rule, said again with sums over all owners each time.
TEST(Shares, RandomCallsFollowTheRule) {
  struct Briefly {
    size_t owner;
    uint64_t count;
  };
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto up_to = [&](uint64_t most) { return random() % (most + 1); };
    const uint64_t least = up_to(1);
    const size_t named = 2 + up_to(4), all = named + 1;  // the last one has no name
    const uint64_t total = named + up_to(up_to(1) ? 20 : 5000);
    Shares shares(total, least);
    std::vector<double> weights(named);
    Shares::Weights table;
    double sum = 0;
    for (double& weight : weights) sum += weight = 0.5 + static_cast<double>(up_to(40)) / 8;
    std::vector<uint64_t> kept(all, 0), used(all, 0);
    const uint64_t half = total / 2;
    uint64_t open = total;
    for (size_t i = 0; i < named; ++i) {
      table[Owner(static_cast<uint8_t>(i))] = weights[i];
      kept[i] =
          std::max(static_cast<uint64_t>(static_cast<double>(half) * (weights[i] / sum)), least);
      open -= kept[i];
    }
    shares.SetWeights(table);
    std::vector<Briefly> briefly;
    for (int step = 0; step < 400; ++step) {
      const size_t i = up_to(all - 1);
      const Digest owner = Owner(static_cast<uint8_t>(i));
      const uint64_t kind = up_to(9);
      if (kind == 0) {
        briefly.push_back({i, 1 + up_to(used[i])});
        shares.AddBriefly(owner, briefly.back().count);
        used[i] += briefly.back().count;
      } else if (kind == 1 && !briefly.empty()) {
        const Briefly last = briefly.back();
        briefly.pop_back();
        shares.EndBrief(last.count);
        shares.Give(Owner(static_cast<uint8_t>(last.owner)), last.count);
        used[last.owner] -= last.count;
      } else if (kind <= 3) {
        uint64_t brief = 0;
        for (const Briefly& one : briefly) brief += one.owner == i ? one.count : 0;
        const uint64_t count = up_to(used[i] - brief);
        if (count > 0) shares.Give(owner, count);
        used[i] -= count;
      } else {
        const uint64_t count = 1 + up_to(total / 4);
        uint64_t whole = 0, beyond = 0;
        std::vector<uint64_t> after = used;
        after[i] += count;
        for (size_t each = 0; each < all; ++each) {
          whole += after[each];
          beyond += after[each] - std::min(after[each], kept[each]);
        }
        const bool is_kept = after[i] <= kept[i];
        const bool fits = whole <= total && beyond <= open &&
                          after[i] - std::min(after[i], kept[i]) <= (open + 1) / 2;
        ASSERT_EQ(shares.Take(owner, count), is_kept || fits) << seed << ' ' << step;
        if (is_kept || fits) used = after;
      }
      ASSERT_EQ(shares.used_by(owner), used[i]);
      uint64_t whole = 0;
      for (const uint64_t one : used) whole += one;
      ASSERT_EQ(shares.used(), whole);
      if (briefly.empty()) ASSERT_LE(whole, total);
    }
  }
}

TEST(Shares, OtherNamesLeaveWhatWasTaken) {
  Shares shares(100, 1);
  EXPECT_TRUE(shares.Take(Owner(1), 100));
  shares.SetWeights({{Owner(2), 1}, {Owner(3), 1}});
  EXPECT_EQ(shares.used_by(Owner(1)), 100u);
  EXPECT_FALSE(shares.Take(Owner(2), 1));  // there is nothing left
  shares.Give(Owner(1), 25);
  EXPECT_TRUE(shares.Take(Owner(2), 25));
  EXPECT_FALSE(shares.Take(Owner(1), 1));
  shares.Give(Owner(1), 60);
  EXPECT_TRUE(shares.Take(Owner(1), 5));  // 20 of 50 that are kept for no owner
  EXPECT_TRUE(shares.Take(Owner(3), 25));
  shares.SetWeights({});
  EXPECT_TRUE(shares.Take(Owner(1), 100 - shares.used()));
}

}  // namespace
}  // namespace kvasir
