#include "schedule/adapter_set.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace kvasir {
namespace {

class AdapterSeatTest : public testing::Test {
 protected:
  AdapterSeatTest() {
    for (const auto& uses : uses_) set_->uses.push_back(uses);
  }
  // Returns "waiting running" of both adapters.
  std::string Counts() const {
    std::string counts;
    for (const auto& uses : uses_) {
      counts += std::to_string(uses->waiting) + " " + std::to_string(uses->running) + ",";
    }
    return counts;
  }

  const std::shared_ptr<AdapterUses> uses_[2] = {std::make_shared<AdapterUses>(),
                                                 std::make_shared<AdapterUses>()};
  std::shared_ptr<AdapterSet> set_ = std::make_shared<AdapterSet>();
};

TEST_F(AdapterSeatTest, CountsARequestOfEachAdapterWhereItIs) {
  {
    AdapterSeat waits(set_), runs(set_);
    EXPECT_EQ(Counts(), "2 0,2 0,");
    runs.Run();
    runs.Run();  // again after a preemption
    EXPECT_EQ(Counts(), "1 1,1 1,");
  }
  EXPECT_EQ(Counts(), "0 0,0 0,");
}

TEST_F(AdapterSeatTest, MovesCountNothingTwice) {
  AdapterSeat first(set_);
  first.Run();
  AdapterSeat second(std::move(first));
  EXPECT_EQ(Counts(), "0 1,0 1,");
  EXPECT_EQ(second.get(), set_.get());
  AdapterSeat third;
  EXPECT_EQ(third.get(), nullptr);
  third.Run();
  EXPECT_EQ(Counts(), "0 1,0 1,");
  third = std::move(second);
  EXPECT_EQ(Counts(), "0 1,0 1,");
  third = AdapterSeat();
  EXPECT_EQ(Counts(), "0 0,0 0,");
}

TEST_F(AdapterSeatTest, KeepsItsAdaptersUntilTheLastRequestEnds) {
  std::optional<AdapterSeat> one(set_), other(set_);
  const std::weak_ptr<AdapterSet> set = std::exchange(set_, nullptr);
  one.reset();
  EXPECT_FALSE(set.expired());
  other.reset();
  EXPECT_TRUE(set.expired());
}

TEST(AdapterSet, HasItsOwnIdentityForBothKindsOfRope) {
  const auto identity = [](uint8_t value) {
    Identity made;
    made.fill(value);
    return made;
  };
  SchedulerOptions options;
  options.identity = identity(1);
  options.long_rope.emplace();
  options.long_rope->identity = identity(2);
  AdapterSet adapters;
  adapters.identity = identity(3);
  adapters.long_identity = identity(4);
  EXPECT_EQ(IdentityOf(options, nullptr, /*is_long=*/false), identity(1));
  EXPECT_EQ(IdentityOf(options, nullptr, /*is_long=*/true), identity(2));
  EXPECT_EQ(IdentityOf(options, &adapters, /*is_long=*/false), identity(3));
  EXPECT_EQ(IdentityOf(options, &adapters, /*is_long=*/true), identity(4));
}

}  // namespace
}  // namespace kvasir
