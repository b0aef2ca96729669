#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
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

// Waits for a while until the phase's worker reports that it runs. Until then it cannot have been
// moved, because the caller moves it only after its own item has ended.
bool AwaitWorker(const std::atomic<bool>& ran) {
  for (int i = 0; i < 1000 && !ran; ++i) sched_yield();
  return ran;
}

// Runs phases of two threads whose worker reports where it may run.
class PhaseOfTwo {
 public:
  // Runs work() on the worker. True if it reported before it could have been moved.
  template <typename Work>
  bool Run(Work work) {
    std::atomic<bool> ran = false;
    bool in_time = false;
    pool_.Run(2, [&](uint32_t, uint32_t thread) {
      if (thread == 0) {
        in_time = AwaitWorker(ran);
        return;
      }
      of_worker = AllowedCpus();
      ran = true;
      work();
    });
    return in_time;
  }
  bool Run() {
    return Run([] {});
  }

  std::vector<uint32_t> of_worker;

 private:
  ThreadPool pool_{2, nullptr};
};

bool Contains(const std::vector<uint32_t>& cpus, uint32_t cpu) {
  return std::ranges::find(cpus, cpu) != cpus.end();
}
uint32_t ThisCpu() { return static_cast<uint32_t>(sched_getcpu()); }

TEST(ThreadPool, WorkersKeepOffTheCallersProcessor) {
  const std::vector<uint32_t> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one processor";
  PhaseOfTwo phase;
  for (const uint32_t cpu : {allowed[0], allowed[1]}) {
    bool seen = false;
    // The kernel may move the caller, so not every phase fits.
    for (int i = 0; i < 1000 && !seen; ++i) {
      ASSERT_TRUE(PinThisThread({cpu}) && PinThisThread(allowed));
      const uint32_t before = ThisCpu();
      if (!phase.Run() || before != cpu || ThisCpu() != cpu) continue;
      if (phase.of_worker.size() != allowed.size() - 1) continue;
      EXPECT_FALSE(Contains(phase.of_worker, cpu));
      seen = true;
    }
    EXPECT_TRUE(seen) << "no phase with the worker kept off processor " << cpu;
  }
}

TEST(ThreadPool, ACallerThatSleepsFetchesWhoItWaitsFor) {
  const std::vector<uint32_t> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one processor";
  PhaseOfTwo phase;
  const uint64_t end_ns = MonotonicNs() + 20'000'000'000;
  bool fetched = false, back = false;
  while (!back && MonotonicNs() < end_ns) {
    std::vector<uint32_t> now;
    bool there = false;
    phase.Run([&] {
      const uint64_t give_up_ns = MonotonicNs() + 100'000'000;
      while (!there && MonotonicNs() < give_up_ns) {
        now = AllowedCpus();
        there = now.size() == 1 && !Contains(phase.of_worker, now[0]);
      }
    });
    if (!there) continue;
    fetched = true;
    // If the caller has stayed, the next phase keeps the worker off that processor again.
    const uint32_t before = ThisCpu();
    if (!phase.Run() || before != now[0] || ThisCpu() != before) continue;
    EXPECT_FALSE(Contains(phase.of_worker, before));
    back = true;
  }
  EXPECT_TRUE(fetched);
  EXPECT_TRUE(back);
}

TEST(ThreadPool, ACallerThatMayOnlyRunWhereTheWorkerWasPutGivesItTheRestBack) {
  const std::vector<uint32_t> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one processor";
  PhaseOfTwo phase;
  bool kept_off = false;
  for (int i = 0; i < 1000 && !kept_off; ++i) {
    kept_off = phase.Run() && phase.of_worker.size() == allowed.size() - 1;
  }
  ASSERT_TRUE(kept_off);
  ASSERT_TRUE(PinThisThread({phase.of_worker[0]}));
  for (int i = 0; i < 1000 && phase.of_worker != allowed; ++i) phase.Run();
  EXPECT_EQ(phase.of_worker, allowed);
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
        if (thread == 0) {
          AwaitWorker(ran);
          return;
        }
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

TEST(ThreadPool, WhatAnItemThrowsComesOutOfItsPhase) {
  for (const uint32_t threads : {1u, 3u}) {
    ThreadPool pool(threads, nullptr);
    std::atomic<uint32_t> done = 0;
    const auto run = [&](bool throws) {
      pool.Run(40, [&](uint32_t, uint32_t) {
        if (throws) throw std::bad_alloc();
        ++done;
      });
    };
    EXPECT_THROW(run(true), std::bad_alloc);
    run(false);
    EXPECT_EQ(done, 40u) << "the next phase is as always";
  }
}

// In a child process whose memory limit leaves no room for the stack of another thread.
TEST(ThreadPool, SaysThatTheSystemRefusesAThread) {
#ifdef KVASIR_SANITIZED
  GTEST_SKIP() << "a sanitizer needs more memory than the limit";
#endif
  const auto start = [] {
    const rlimit limit = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_AS, &limit);
    ThreadPool pool(4, nullptr);
    if (pool.status() || pool.status().error().code != Code::kExhausted) std::_Exit(1);
    uint32_t done = 0;
    pool.Run(10, [&](uint32_t, uint32_t thread) { done += thread == 0; });
    std::fputs(pool.status().error().message.c_str(), stderr);
    std::_Exit(done == 10 && pool.num_threads() == 1 ? 0 : 2);
  };
  // Starts a new process, because this one keeps the stacks of ended threads.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(start(), testing::ExitedWithCode(0),
              "compute: the system refuses another thread: .*ulimit");
}

}  // namespace
}  // namespace kvasir
