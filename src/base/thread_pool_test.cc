#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <vector>

#include "base/cpu_topology.h"

namespace kvasir {
namespace {

TEST(ThreadPool, RunsEveryItemOfEveryPhaseOnce) {
  ThreadPool pool(3, nullptr);
  for (uint32_t phase = 0; phase < 20000; ++phase) {
    const uint32_t items = phase % 17;
    std::vector<uint32_t> runs(items, 0);
    pool.Run(items, [&](uint32_t item, uint32_t thread) {
      ASSERT_LT(thread, 3u);
      ++runs[item];
    });
    for (uint32_t r : runs) ASSERT_EQ(r, 1u);
  }
}

TEST(ThreadPool, WritesOfItemsAreVisibleToTheNextPhase) {
  ThreadPool pool(2, nullptr);
  std::vector<uint64_t> numbers(64, 1);
  for (int phase = 0; phase < 40; ++phase) {
    std::vector<uint64_t> next(64);
    pool.Run(64, [&](uint32_t i, uint32_t) { next[i] = numbers[i] + numbers[(i + 1) % 64]; });
    numbers = next;
  }
  for (uint64_t n : numbers) ASSERT_EQ(n, uint64_t{1} << 40);
}

TEST(ThreadPool, WorkersKeepOffTheCallersProcessor) {
  const std::vector<uint32_t> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one processor";
  ThreadPool pool(2, nullptr);
  // A caller that waits long lends its processor, so not every phase will do.
  for (int phase = 0; phase < 1000; ++phase) {
    std::atomic<bool> ran = false;
    std::vector<uint32_t> of_worker;
    pool.Run(2, [&](uint32_t, uint32_t thread) {
      if (thread == 0) {
        for (int i = 0; i < 1000 && !ran; ++i) sched_yield();
      } else {
        of_worker = AllowedCpus();
        ran = true;
      }
    });
    if (of_worker.size() == allowed.size() - 1) return;
  }
  FAIL() << "no phase with the worker kept off one processor";
}

TEST(ThreadPool, PinnedWorkersStayWhereTheyWerePut) {
  const std::vector<uint32_t> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one processor";
  ThreadPool pool(2, nullptr, allowed);
  uint32_t seen = 0;
  for (int phase = 0; phase < 1000; ++phase) {
    pool.Run(2, [&](uint32_t, uint32_t thread) {
      if (thread == 0) {
        sched_yield();
      } else {
        EXPECT_EQ(AllowedCpus(), std::vector<uint32_t>{allowed[1]});
        ++seen;
      }
    });
  }
  EXPECT_GT(seen, 0u);
}

TEST(ThreadPool, AloneTheCallerDoesEverythingInOrder) {
  ThreadPool pool(1, nullptr);
  std::vector<uint32_t> order;
  pool.Run(5, [&](uint32_t item, uint32_t thread) {
    EXPECT_EQ(thread, 0u);
    order.push_back(item);
  });
  EXPECT_EQ(order, (std::vector<uint32_t>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace kvasir
