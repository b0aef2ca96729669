#include "http/connection_set.h"

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <string>
#include <vector>

namespace kvasir {
namespace {

uint64_t now_ns = 0;
uint64_t Now() { return now_ns; }
void Pass(uint64_t ms) { now_ns += ms * 1'000'000; }

// A connection whose strand runs when the test calls it.
class Handle : public ConnectionHandle {
 public:
  void Finish() override {}
  void CloseForRoom() override {
    if (refuses) throw std::bad_alloc();
    ++told;
  }
  bool refuses = false;
  int told = 0;
};

class ConnectionSetTest : public testing::Test {
 protected:
  std::shared_ptr<Handle> Add(Waits waits) {
    auto handle = std::make_shared<Handle>();
    set_.Add(handle);
    set_.Set(handle.get(), waits);
    Pass(1);
    return handle;
  }
  ConnectionSet set_{1 << 20, 1 << 20, 0, Now};
};

TEST_F(ConnectionSetTest, TheLongestIdleGoesFirst) {
  const auto sending = Add(Waits::kForRest);
  const auto first = Add(Waits::kForRequest), second = Add(Waits::kForRequest);
  Pass(kFreshMs);
  EXPECT_EQ(set_.MakeRoom(1), 1u);
  EXPECT_TRUE(set_.IsClosing(first.get()));
  EXPECT_EQ(set_.MakeRoom(1), 1u);
  EXPECT_TRUE(set_.IsClosing(second.get()));
  EXPECT_FALSE(set_.IsClosing(sending.get()));
  EXPECT_EQ(set_.MakeRoom(5), 1u) << "one is left";
  EXPECT_TRUE(set_.IsClosing(sending.get()));
  EXPECT_EQ(first->told + second->told + sending->told, 3);
}

TEST_F(ConnectionSetTest, ANewcomerIsNotTheVictimOfThoseWhoSendForLong) {
  const auto slowest = Add(Waits::kForRest), slow = Add(Waits::kForRest);
  const auto newcomer = Add(Waits::kForRequest);
  EXPECT_EQ(set_.MakeRoom(1), 1u);
  EXPECT_TRUE(set_.IsClosing(slowest.get()));
  EXPECT_FALSE(set_.IsClosing(newcomer.get()));
}

TEST_F(ConnectionSetTest, WhoIsAnsweredStays) {
  const auto answered = Add(Waits::kNot), writing = Add(Waits::kForClient);
  EXPECT_EQ(set_.MakeRoom(2), 0u);
  Pass(kStalledMs);
  EXPECT_EQ(set_.MakeRoom(2), 1u) << "whose client takes nothing";
  EXPECT_TRUE(set_.IsClosing(writing.get()));
  EXPECT_FALSE(set_.IsClosing(answered.get()));
}

TEST_F(ConnectionSetTest, ARequestThatWasReadMeanwhileSavesItsConnection) {
  const auto one = Add(Waits::kForRest);
  EXPECT_EQ(set_.MakeRoom(1), 1u);
  EXPECT_EQ(set_.num_staying(), 0u);
  set_.Set(one.get(), Waits::kNot);
  EXPECT_FALSE(set_.IsClosing(one.get()));
  EXPECT_EQ(set_.num_staying(), 1u);
  EXPECT_EQ(set_.num_closing(), 0u);
}

TEST_F(ConnectionSetTest, HundredsGoAtOnce) {
  std::vector<std::shared_ptr<Handle>> all;
  for (int i = 0; i < 500; ++i) all.push_back(Add(Waits::kForRest));
  EXPECT_EQ(set_.MakeRoom(300), 300u);
  EXPECT_EQ(set_.num_closing(), 300u);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(set_.IsClosing(all[i].get()), i < 300) << i;
  for (const auto& handle : all) set_.Remove(handle.get());
  EXPECT_EQ(set_.num_closing(), 0u);
  EXPECT_EQ(set_.size(), 0u);
}

TEST_F(ConnectionSetTest, OneThatCannotBeToldStays) {
  const auto one = Add(Waits::kForRest);
  one->refuses = true;
  set_.MakeRoom(1);
  EXPECT_EQ(set_.num_closing(), 0u);
  one->refuses = false;
  EXPECT_EQ(set_.MakeRoom(1), 1u);
}

}  // namespace
}  // namespace kvasir
