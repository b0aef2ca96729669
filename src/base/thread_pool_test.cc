#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/clock.h"
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

// Waits, for a while, until the worker of the phase has said that it runs.
void AwaitWorker(const std::atomic<bool>& ran) {
  for (int i = 0; i < 1000 && !ran; ++i) sched_yield();
}

TEST(ThreadPool, WorkersKeepOffTheCallersProcessor) {
  const std::vector<uint32_t> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one processor";
  ThreadPool pool(2, nullptr);
  for (const uint32_t cpu : {allowed[0], allowed[1]}) {
    bool seen = false;
    // The kernel may move the caller, and one that waits long lends its processor: not every phase
    // will do.
    for (int phase = 0; phase < 1000 && !seen; ++phase) {
      ASSERT_TRUE(PinThisThread({cpu}) && PinThisThread(allowed));
      std::atomic<bool> ran = false;
      std::vector<uint32_t> of_worker;
      const auto before = static_cast<uint32_t>(sched_getcpu());
      uint32_t after = 0;
      pool.Run(2, [&](uint32_t, uint32_t thread) {
        if (thread == 0) {
          after = static_cast<uint32_t>(sched_getcpu());
          AwaitWorker(ran);
        } else {
          of_worker = AllowedCpus();
          ran = true;
        }
      });
      if (before != cpu || after != cpu || of_worker.size() != allowed.size() - 1) continue;
      EXPECT_EQ(std::ranges::find(of_worker, cpu), of_worker.end());
      seen = true;
    }
    EXPECT_TRUE(seen) << "no phase with the worker kept off processor " << cpu;
  }
}

TEST(ThreadPool, ACallerThatSleepsFetchesWhoItWaitsFor) {
  const std::vector<uint32_t> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one processor";
  ThreadPool pool(2, nullptr);
  bool kept_off = false, fetched = false;
  std::vector<uint32_t> of_worker;
  const auto run = [&](auto work) {
    std::atomic<bool> ran = false;
    pool.Run(2, [&](uint32_t, uint32_t thread) {
      if (thread == 0) return AwaitWorker(ran);
      ran = true;
      work();
    });
  };
  for (int phase = 0; phase < 1000 && !fetched; ++phase) {
    run([&] {
      const std::vector<uint32_t> before = AllowedCpus();
      if (before.size() != allowed.size() - 1) return;
      kept_off = true;
      const uint64_t end_ns = MonotonicNs() + 10'000'000'000;
      while (!fetched && MonotonicNs() < end_ns) {
        of_worker = AllowedCpus();
        fetched = of_worker.size() == 1 && std::ranges::find(before, of_worker[0]) == before.end();
      }
    });
  }
  EXPECT_TRUE(kept_off);
  EXPECT_TRUE(fetched);
  // A later phase keeps it off the caller's processor again, wherever that is by now.
  bool back = false;
  for (int phase = 0; phase < 1000 && !back; ++phase) {
    const auto before = static_cast<uint32_t>(sched_getcpu());
    run([&] { of_worker = AllowedCpus(); });
    if (static_cast<uint32_t>(sched_getcpu()) != before) continue;
    back = std::ranges::find(of_worker, before) == of_worker.end();
  }
  EXPECT_TRUE(back);
}

TEST(ThreadPool, ACallerThatMayOnlyRunWhereTheWorkerWasPutGivesItTheRestBack) {
  const std::vector<uint32_t> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one processor";
  ThreadPool pool(2, nullptr);
  std::vector<uint32_t> of_worker;
  const auto run = [&] {
    std::atomic<bool> ran = false;
    pool.Run(2, [&](uint32_t, uint32_t thread) {
      if (thread == 0) return AwaitWorker(ran);
      of_worker = AllowedCpus();
      ran = true;
    });
  };
  for (int phase = 0; phase < 1000 && of_worker.size() != allowed.size() - 1; ++phase) run();
  ASSERT_EQ(of_worker.size(), allowed.size() - 1);
  ASSERT_TRUE(PinThisThread({of_worker[0]}));
  for (int phase = 0; phase < 1000 && of_worker != allowed; ++phase) run();
  EXPECT_EQ(of_worker, allowed);
  EXPECT_TRUE(PinThisThread(allowed));
}

TEST(ThreadPool, PinnedWorkersStayWhereTheyWerePut) {
  const std::vector<uint32_t> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one processor";
  for (const uint32_t cpu : {allowed[0], allowed[1]}) {
    const std::vector<uint32_t> cpus(2, cpu);
    ThreadPool pool(2, nullptr, cpus);
    uint32_t seen = 0;
    for (int phase = 0; phase < 1000 && seen < 10; ++phase) {
      std::atomic<bool> ran = false;
      pool.Run(2, [&](uint32_t, uint32_t thread) {
        if (thread == 0) return AwaitWorker(ran);
        EXPECT_EQ(AllowedCpus(), std::vector<uint32_t>{cpu});
        ++seen;
        ran = true;
      });
    }
    EXPECT_GT(seen, 0u);
  }
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
