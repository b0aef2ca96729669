#include "server/prepare_pool.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "http/request_memory.h"

namespace kvasir {
namespace {

constexpr size_t kSmall = 100, kLarge = kSmallBodyBytes + 1;

// Keeps a thread of the pool busy until it is opened.
class Gate {
 public:
  PreparePool::Task Task() {
    return [this](MemoryQuota&) {
      entered_.set_value();
      opened_.get_future().wait();
    };
  }
  void AwaitEntered() { entered_.get_future().wait(); }
  void Open() { opened_.set_value(); }

 private:
  std::promise<void> entered_, opened_;
};

TEST(PreparePool, SmallBodiesGoOnBesideALargeOne) {
  MemoryQuota small(1 << 20), large(2 << 20);
  PreparePool pool(small, large);
  ASSERT_TRUE(pool.Start());
  Gate gate;
  pool.Run("a", kLarge, gate.Task());
  gate.AwaitEntered();
  for (int i = 0; i < 100; ++i) {
    std::promise<uint64_t> quota;
    pool.Run("a", kSmall, [&](MemoryQuota& q) { quota.set_value(q.max_bytes()); });
    EXPECT_EQ(quota.get_future().get(), 1u << 20);
  }
  std::promise<uint64_t> quota;
  pool.Run("a", kLarge, [&](MemoryQuota& q) { quota.set_value(q.max_bytes()); });
  EXPECT_EQ(pool.num_waiting(), 1u);
  gate.Open();
  EXPECT_EQ(quota.get_future().get(), 2u << 20);
}

TEST(PreparePool, TenantsTakeTurnsAndKeepTheirOwnOrder) {
  MemoryQuota small(1 << 20), large(1 << 20);
  PreparePool pool(small, large);
  ASSERT_TRUE(pool.Start());
  Gate gate;
  pool.Run("a", kLarge, gate.Task());
  gate.AwaitEntered();
  std::vector<std::string> order;  // of the one thread that takes large bodies
  std::promise<void> done;
  const auto note = [&](std::string what) {
    return [&order, what](MemoryQuota&) { order.push_back(what); };
  };
  for (int i = 0; i < 3; ++i) pool.Run("a", kLarge, note("a" + std::to_string(i)));
  pool.Run("b", kLarge, note("b0"));
  pool.Run("c", kLarge, note("c0"));
  pool.Run("b", kLarge, note("b1"));
  pool.Run("c", kLarge, [&](MemoryQuota&) { order.push_back("c1"); });
  pool.Run("a", kLarge, [&](MemoryQuota&) { done.set_value(); });
  gate.Open();
  done.get_future().wait();
  EXPECT_EQ(order, (std::vector<std::string>{"a0", "b0", "c0", "a1", "b1", "c1", "a2"}));
}

TEST(PreparePool, EndsWithTasksThatWaitAndHoldsNoneOfThemAfterwards) {
  const auto held = std::make_shared<int>(0);
  Gate large, small;
  MemoryQuota quota(1 << 20);
  {
    PreparePool pool(quota, quota);
    ASSERT_TRUE(pool.Start());
    pool.Run("a", kLarge, large.Task());
    large.AwaitEntered();
    pool.Run("a", kSmall, small.Task());
    small.AwaitEntered();
    for (int i = 0; i < 5000; ++i) {
      pool.Run(std::to_string(i % 7), i % 2 ? kLarge : kSmall, [held](MemoryQuota&) {});
    }
    EXPECT_EQ(held.use_count(), 5001);
    small.Open();
    large.Open();
  }
  EXPECT_EQ(held.use_count(), 1);  // some ran, the others were dropped
}

}  // namespace
}  // namespace kvasir
