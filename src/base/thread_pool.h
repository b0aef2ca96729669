// ThreadPool: workers that claim numbered items by an atomic counter.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// Run() splits a phase into items, and each free thread takes the next one, so another busy process
// costs only its share of time. Items must be independent: results must not depend on which thread
// computes an item. One caller at a time; the caller computes too. A waiting thread (a worker for
// the next phase, the caller for an item of another thread) spins for some microseconds, because
// phases of one step follow each other closely. Then it sleeps, which leaves its processor to the
// thread it waits for, if another process pushed that aside. Workers avoid the caller's processor,
// where they could only take turns with it. When the caller has slept for 200 us, it moves the
// awaited worker to its own processor until the next phase. Workers are not moved when they are
// pinned or more than the processors (docs/decisions/0005-threads.md).
class ThreadPool {
 public:
  // REQUIRES: num_threads >= 1; it includes the caller. on_start runs once in each worker. `cpus`:
  // empty, or the processor of each thread; [0] is for the caller, which pins itself.
  ThreadPool(uint32_t num_threads, void (*on_start)(), std::span<const uint32_t> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // kExhausted when the system refused a thread; then the caller computes everything.
  const Status& status() const { return status_; }
  uint32_t num_threads() const { return static_cast<uint32_t>(workers_.size()) + 1; }

  // Calls fn(item, thread) for each item in [0, num_items), with thread in [0, num_threads()).
  // Allocates nothing. Returns when all items are done and their writes are visible to the caller.
  // Throws the exception of an item, if there was one.
  template <typename Fn>
  void Run(uint32_t num_items, Fn&& fn) {
    if (num_items <= 1 || workers_.empty()) {
      for (uint32_t i = 0; i < num_items; ++i) fn(i, 0);
      return;
    }
    RunErased(
        num_items,
        [](void* f, uint32_t item, uint32_t thread) {
          (*static_cast<std::remove_reference_t<Fn>*>(f))(item, thread);
        },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Erased = void (*)(void* fn, uint32_t item, uint32_t thread);
  struct alignas(64) Worker {
    std::thread thread;
    std::atomic<bool> has_item{false};  // relaxed: a hint which worker to move
  };
  void Stop();
  void RunErased(uint32_t num_items, Erased call, void* fn);
  void Work(uint32_t thread);
  // Claims and runs items of the current phase until none is left.
  void Claim(uint32_t thread);
  void WaitForItems(uint32_t num_items);
  // Lets workers run on the caller's allowed processors except `cpu`, its current one. Makes system
  // calls only when `cpu` has changed or a worker was moved.
  void KeepWorkersOff(int cpu);
  // Moves a worker that holds an item to the caller's processor.
  void FetchWorker();

  std::vector<Worker> workers_;
  const bool pinned_;
  Status status_;
  std::optional<int> kept_off_;  // the processor that workers avoid
  bool restricted_ = false;      // whether the workers' masks lack it
  cpu_set_t at_start_;           // processors allowed at the start
  Worker* fetched_ = nullptr;    // the worker that was moved last in this phase
  int fetched_to_ = 0;           // its processor
  // The current phase: phase number (24 bits) | number of items (20) | next item (20). A claim is a
  // compare-and-swap of all three, so a late worker can never claim an item of a phase that has
  // ended, and no thread waits for a worker without an item.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  std::atomic<Erased> call_{nullptr};  // relaxed: published by ticket_
  std::atomic<void*> fn_{nullptr};
  alignas(64) std::atomic<uint32_t> done_{0};   // items finished of this phase
  std::atomic<bool> caller_sleeps_{false};      // on done_, or is about to
  alignas(64) std::atomic<uint32_t> epoch_{0};  // the word that sleeping workers wait on
  std::atomic<uint32_t> sleepers_{0};           // workers that sleep, or are about to
  std::atomic<bool> stop_{false};
  std::atomic<bool> threw_{false};  // an item of this phase threw; the first one writes thrown_
  std::exception_ptr thrown_;       // published by done_
};

}  // namespace kvasir
