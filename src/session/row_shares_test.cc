#include "session/row_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <string>

#include "session/sealed_rows_for_test.h"

namespace kvasir {
namespace {

using Old = SealedRows::Old;

constexpr uint64_t kFileBytes = uint64_t{8} << 20;

TEST(RowShares, KeepHalfOfTheFileForThoseWithANameByWeight) {
  RowShares shares(kFileBytes);
  EXPECT_FALSE(shares.are_divided());
  shares.SetWeights({{kMira, 3}, {kOther, 1}});
  EXPECT_TRUE(shares.are_divided());
  shares.Begin();
  EXPECT_EQ(shares.kept_for(kMira), 3 * shares.kept_for(kOther));
  EXPECT_TRUE(shares.Fits(kOther, 0, 100'000));
  EXPECT_EQ(shares.used_by(kOther), 0u) << "Fits takes nothing";
  EXPECT_FALSE(shares.Fits(kOther, 0, kFileBytes));
}

TEST(RowShares, FollowChangesUntilTheyAreUnknown) {
  RowShares shares(kFileBytes);
  shares.Change(kMira, 0, 5'000);
  EXPECT_FALSE(shares.is_known()) << "a change says nothing of the other rows";
  shares.Begin();
  shares.Add(kMira, 5'000);
  const uint64_t one = shares.used_by(kMira);
  EXPECT_GE(one, 5'000u);
  shares.Change(kMira, 5'000, 50'000);
  EXPECT_GT(shares.used_by(kMira), one);
  shares.Change(kMira, 50'000, 5'000);
  EXPECT_EQ(shares.used_by(kMira), one);
  shares.Change(kMira, 5'000, 0);
  EXPECT_EQ(shares.used_by(kMira), 0u);
  shares.Forget();
  EXPECT_FALSE(shares.is_known());
}

class RowSharesOfFileTest : public SealedRowsTest {
 protected:
  // Returns what a refusal says that the owner's rows take.
  static std::string SaidOf(SealedRows& rows, const Digest& owner) {
    rows.SetWeights({{kMira, 1}, {kOther, 1}});
    const std::string large(6 << 20, 'x');
    const Status put = rows.Put(owner, "sess_large", 1, 1, Bytes(large), Old::kStays);
    return put ? "it fits" : put.error().message;
  }
};

// The counts go on from row to row; a file that is opened anew reads them from its table.
TEST_F(RowSharesOfFileTest, AreThoseOfTheTableAfterAnyHistory) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const Digest owners[] = {kMira, kOther};
  uint64_t number[2][6] = {};  // of the owner's rows; 0: there is none
  auto rows = Open();
  SaidOf(*rows, kMira);  // from here on they are known
  for (int step = 0; step < 60; ++step) {
    const size_t who = random() % 2, which = random() % 6;
    uint64_t& at = number[who][which];
    const std::string id = "sess_" + std::to_string(who) + std::to_string(which);
    const std::string text(random() % 30'000, 'x');
    switch (random() % 10) {
      case 0:
        ASSERT_TRUE(rows->Remove(owners[who], id));
        at = 0;
        break;
      case 1:
        ASSERT_TRUE(rows->Remove(owners[1 - who], id)) << "it is not theirs, and stays";
        break;
      case 2:
        if (step % 7 != 0) break;
        ASSERT_TRUE(rows->RemoveOwner(owners[who]));
        std::fill(std::begin(number[who]), std::end(number[who]), 0);
        break;
      default:
        ASSERT_TRUE(rows->Put(owners[who], id, ++at, 1, Bytes(text),
                              step % 2 == 0 ? Old::kStays : Old::kScrubbed));
    }
  }
  const std::string mira = SaidOf(*rows, kMira), other = SaidOf(*rows, kOther);
  rows.reset();
  rows = Open();
  EXPECT_EQ(SaidOf(*rows, kMira), mira);
  EXPECT_EQ(SaidOf(*rows, kOther), other);
  EXPECT_TRUE(mira.starts_with("your sessions take ")) << mira;
}

}  // namespace
}  // namespace kvasir
