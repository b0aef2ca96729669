#include "remote/remote_looker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "remote/remote_parts_for_test.h"

namespace kvasir {
namespace {

class RemoteLookerTest : public RemoteParts {
 protected:
  ~RemoteLookerTest() override { Stop(); }

  static LookFor Asked(uint32_t num_names, bool is_chain = true) {
    LookFor what{.owner = TestRecord::Owner(0), .is_chain = is_chain};
    for (uint32_t i = 0; i < num_names; ++i) what.names.push_back(TestRecord::Name(0, i));
    return what;
  }
  // Connects, and waits until the owner is known.
  void Connect() {
    Run([this] { looker_.Loop(); });
    ASSERT_TRUE(WaitUntil([](RemoteStore& store) KV_REQUIRES(store.mutex) {
      return store.state.now == RemoteStats::State::kOn;
    }));
    {
      MutexLock lock(store_->mutex);
      ASSERT_TRUE(store_->OwnerOf(TestRecord::Owner(0)));
    }
    store_->looker_wake.notify_all();
    ASSERT_TRUE(WaitUntil([](RemoteStore& store) KV_REQUIRES(store.mutex) {
      return store.at(*store.owner_keys.Find(TestRecord::Owner(0))).is_usable();
    }));
  }
  void Look(const LookFor& what) {
    const auto told = std::make_shared<std::atomic<bool>>(false);
    ASSERT_TRUE(looker_.Begin(what, [told] { told->store(true); }));
    ASSERT_TRUE(WaitUntil([told](RemoteStore&) { return told->load(); }));
  }
  // Returns the numbers of the names that are known to be in the store.
  std::vector<uint32_t> Seen(const LookFor& what) {
    std::vector<uint32_t> seen;
    MutexLock lock(store_->mutex);
    for (uint32_t i = 0; i < what.names.size(); ++i) {
      const RemoteNames::Entry* const entry = store_->names.Find(what.names[i]);
      if (entry != nullptr && entry->IsFresh(store_->NowS())) seen.push_back(i);
    }
    return seen;
  }

  RemoteLooker looker_{*store_};
};

TEST_F(RemoteLookerTest, ConnectsMeasuresAndMakesAnOwnersObject) {
  EXPECT_FALSE(looker_.Begin(Asked(1), [] {})) << "it is not connected";
  Connect();
  const std::string name = store_->keys.OwnerName(TestRecord::Owner(0));
  ASSERT_EQ(fake_.values().size(), 1u) << "the probe's value was removed";
  ASSERT_TRUE(fake_.values().contains(name));
  MutexLock lock(store_->mutex);
  EXPECT_GT(store_->figures.stats.rtt_ms, 0);
  EXPECT_GT(store_->figures.load_bytes_per_s, 0);
  EXPECT_GT(store_->figures.look_ns, 0);
}

TEST_F(RemoteLookerTest, LeavesTheStoreAloneUntilTheBreakerSays) {
  Connect();
  store_->TurnOff("the reader's error");
  const uint32_t asked_before = fake_.Count("PING");
  for (int i = 0; i < 3; ++i) {  // what it notes in between shows that it goes round
    {
      MutexLock lock(store_->mutex);
      store_->erasures.notes.push_back({.owner = TestRecord::Owner(1), .epoch = 1});
    }
    store_->looker_wake.notify_all();
    ASSERT_TRUE(WaitUntil([](RemoteStore& store)
                              KV_REQUIRES(store.mutex) { return store.erasures.notes.empty(); }));
  }
  EXPECT_EQ(fake_.Count("PING"), asked_before);
  {
    MutexLock lock(store_->mutex);
    EXPECT_EQ(store_->state.now, RemoteStats::State::kOff);
    store_->state.breaker = RemoteBreaker();  // its time has come
  }
  store_->looker_wake.notify_all();
  EXPECT_TRUE(WaitUntil([](RemoteStore& store) KV_REQUIRES(store.mutex) {
    return store.state.now == RemoteStats::State::kOn;
  }));
  EXPECT_GT(fake_.Count("PING"), asked_before);
}

TEST_F(RemoteLookerTest, FindsTheEndOfAChainInTwoRounds) {
  Connect();
  const LookFor what = Asked(200);
  std::vector<std::string> names;
  for (const RecordName& name : what.names) names.push_back(NameOf(what.owner, name));
  for (const uint32_t end : {0u, 1u, 9u, 100u, 199u, 200u}) {
    fake_.Change([&](auto& values) {
      for (const std::string& name : names) values.erase(name);
      for (uint32_t i = 0; i < end; ++i) values[names[i]] = "x";
    });
    {
      MutexLock lock(store_->mutex);
      store_->names.DoubtOwner(*store_->owner_keys.Find(what.owner));
    }
    const uint32_t asked_before = fake_.Count("EXISTS");
    Look(what);
    const std::vector<uint32_t> seen = Seen(what);
    ASSERT_EQ(seen.size(), end);
    EXPECT_TRUE(end == 0 || seen.back() == end - 1) << end;
    EXPECT_LE(fake_.Count("EXISTS") - asked_before, 64u) << "32 names a round";
  }
}

TEST_F(RemoteLookerTest, WhatIsNoChainIsAskedForOneByOne) {
  Connect();
  const LookFor what = Asked(20, /*is_chain=*/false);
  for (const uint32_t i : {2, 3, 19}) fake_.Put(NameOf(what.owner, what.names[i]), "x");
  Look(what);
  EXPECT_EQ(Seen(what), (std::vector<uint32_t>{2, 3, 19}));
  EXPECT_EQ(fake_.Count("EXISTS"), 20u);
  MutexLock lock(store_->mutex);
  EXPECT_EQ(store_->figures.stats.lookups, 1u);
}

TEST_F(RemoteLookerTest, TakesOnlySoManyLookupsAndEndsThemAll) {
  HaveOwner();
  uint32_t taken = 0, ended = 0;
  while (taken < 1000 && looker_.Begin(Asked(1), [&] { ++ended; })) ++taken;
  EXPECT_EQ(taken, 64u);
  EXPECT_FALSE(looker_.Begin(Asked(0), [] {})) << "nothing to look for";
  {
    MutexLock lock(store_->mutex);
    store_->is_stopping.store(true, std::memory_order_relaxed);
  }
  looker_.Loop();  // on this thread: it only ends
  EXPECT_EQ(ended, taken);
}

}  // namespace
}  // namespace kvasir
