#include "server/erase_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

class EraseQueueTest : public testing::Test {
 protected:
  EraseQueueTest() { engine_.holds_erasures = true; }

  void Erase(const std::string& owner, std::string name) {
    queue_->Erase(owner, [this, name](const Erasure& erasure) {
      told_.push_back(name + std::to_string(erasure.tokens));
    });
  }
  // Ends the oldest erasure in the engine.
  void Finish(uint64_t tokens) {
    const ErasureSink done = std::move(engine_.erasing.front());
    engine_.erasing.erase(engine_.erasing.begin());
    done({.tokens = tokens});
  }

  FakeEngine engine_{nullptr, nullptr};
  std::unique_ptr<EraseQueue> queue_ = std::make_unique<EraseQueue>(engine_);
  std::vector<std::string> told_;
};

using Names = std::vector<std::string>;

TEST_F(EraseQueueTest, WhatComesMeanwhileSharesTheNextErasureAndNotTheRunningOne) {
  Erase("a", "first ");
  Erase("a", "second ");
  Erase("a", "third ");
  EXPECT_EQ(engine_.erased, Names{"a"});
  Finish(7);
  EXPECT_EQ(told_, Names{"first 7"});
  EXPECT_EQ(engine_.erased, (Names{"a", "a"}));
  Erase("a", "fourth ");  // the second would miss what was cached since it began
  EXPECT_EQ(engine_.erased.size(), 2u);
  Finish(3);
  EXPECT_EQ(told_, (Names{"first 7", "second 3", "third 3"}));
  Finish(0);
  EXPECT_EQ(told_.back(), "fourth 0");
  EXPECT_EQ(engine_.erased.size(), 3u);
  EXPECT_TRUE(engine_.erasing.empty());
  Erase("a", "fifth ");
  EXPECT_EQ(engine_.erased.size(), 4u);
  Finish(1);
}

TEST_F(EraseQueueTest, OwnersDoNotWaitForEachOther) {
  Erase("a", "a");
  Erase("b", "b");
  Erase("a", "A");
  EXPECT_EQ(engine_.erased, (Names{"a", "b"}));
  Finish(1);
  EXPECT_EQ(engine_.erased, (Names{"a", "b", "a"}));
  Finish(2);
  Finish(3);
  EXPECT_EQ(told_, (Names{"a1", "b2", "A3"}));
}

TEST_F(EraseQueueTest, SeveralOwnersAreToldOnceWithTheirSum) {
  Erase("b", "b");
  queue_->EraseAll({"a", "b"}, [this](const Erasure& erasure) {
    told_.push_back("all" + std::to_string(erasure.tokens));
  });
  EXPECT_EQ(engine_.erased, (Names{"b", "a"}));
  Finish(1);
  Finish(2);
  EXPECT_EQ(told_, Names{"b1"}) << "the second erasure of b runs";
  Finish(4);
  EXPECT_EQ(told_, (Names{"b1", "all6"}));
}

TEST_F(EraseQueueTest, AnErrorOfOneOwnerIsTheErrorOfAll) {
  engine_.holds_erasures = false;
  engine_.erasure.error = {Code::kIoError, "a disk"};
  std::optional<Error> error;
  queue_->EraseAll({"a", "b"}, [&](const Erasure& erasure) { error = erasure.error; });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, Code::kIoError);
}

TEST(SinksOfSum, ASinkThatIsCalledAgainCountsOnce) {
  std::vector<Erasure> told;
  auto sinks = SinksOfSum(2, [&](const Erasure& sum) { told.push_back(sum); });
  sinks[1]({.blocks = 2, .kept_shared = 5});
  sinks[1]({.blocks = 3, .kept_shared = 4});
  EXPECT_TRUE(told.empty());
  sinks[0]({.blocks = 1, .kept_shared = 3});
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].blocks, 4u);
  EXPECT_EQ(told[0].kept_shared, 4u);
}

TEST_F(EraseQueueTest, AnEngineThatIsDoneAtOnceIsFine) {
  engine_.holds_erasures = false;
  engine_.erasure.tokens = 5;
  Erase("a", "x");
  Erase("a", "y");
  EXPECT_EQ(told_, (Names{"x5", "y5"}));
}

TEST_F(EraseQueueTest, NothingIsToldAfterItsEnd) {
  Erase("a", "x");
  Erase("a", "y");
  queue_.reset();
  Finish(1);
  EXPECT_TRUE(told_.empty());
  EXPECT_TRUE(engine_.erasing.empty());
}

}  // namespace
}  // namespace kvasir
