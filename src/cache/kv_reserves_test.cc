#include "cache/kv_reserves.h"

#include <gtest/gtest.h>

#include <memory>

#include "cache/cache_driver_for_test.h"

namespace kvasir {
namespace {

class KvReservesTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = BlockPool::Create(layout_.block_bytes(), 10);
    ASSERT_TRUE(made);
    pool_ = std::move(*made);
    reserves_ = std::make_unique<KvReserves>(layout_, /*step_tokens=*/24, *pool_, accounts_);
    owner_ = accounts_.Enter({});
  }
  // Reserves blocks for one sequence without a match.
  Result<Reservation> Reserve(uint32_t tokens) {
    const KvDemand demand{.prompt_tokens = tokens, .tokens = tokens};
    return reserves_->Reserve(owner_, demand, reserves_->BlocksOf(demand));
  }

  const KvLayout layout_ = TinyLayout();
  std::unique_ptr<BlockPool> pool_;
  KvAccounts accounts_{2, 10};
  std::unique_ptr<KvReserves> reserves_;
  AccountId owner_{};
};

TEST_F(KvReservesTest, PromisesWholeBlocksUntilNoneIsLeft) {
  auto first = Reserve(33);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->blocks(), 3u);
  EXPECT_EQ(accounts_.reserved(), 3u);
  const auto refused = Reserve(7 * 16 + 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  EXPECT_NE(refused.error().cause, Cause::kKvMax);
  EXPECT_EQ(accounts_.reserved(), 3u);
  EXPECT_TRUE(Reserve(7 * 16));  // and gives them back at once
  first->Release();
  EXPECT_EQ(accounts_.reserved(), 0u);
}

TEST_F(KvReservesTest, GrowsByWhatIsMissingForEachSequence) {
  auto reservation = Reserve(16);
  ASSERT_TRUE(reservation);
  EXPECT_TRUE(reservation->Grow(48, /*sequences=*/3));
  EXPECT_EQ(reservation->blocks(), 1 + 2 * 3u);
  EXPECT_TRUE(reservation->Grow(40, /*sequences=*/3));  // it has room for that
  EXPECT_EQ(reservation->blocks(), 7u);
  EXPECT_FALSE(reservation->Grow(80, /*sequences=*/2));
  EXPECT_EQ(reservation->blocks(), 7u);
  reservation->Shrink(7);
  EXPECT_EQ(accounts_.reserved(), 0u);
}

TEST_F(KvReservesTest, NamesTheMaximumOfTheOwnerWhereThatIsInTheWay) {
  accounts_.SetQuota(owner_, {.max = 4});
  const auto refused = Reserve(5 * 16);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().cause, Cause::kKvMax);
  EXPECT_TRUE(Reserve(4 * 16));
}

TEST_F(KvReservesTest, ASequenceWithoutAReservationTakesWhatNobodyHasReserved) {
  const auto reservation = Reserve(48);
  ASSERT_TRUE(reservation);
  KvSequence sequence;
  EXPECT_EQ(KvReserves::Of(sequence), nullptr);
  EXPECT_EQ(reserves_->available(sequence), 7u);
  reserves_->Draw(sequence, 5);  // these are not reserved
  EXPECT_EQ(accounts_.reserved(), 3u);
}

}  // namespace
}  // namespace kvasir
