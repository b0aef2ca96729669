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

// Run() splits a phase into items; whichever thread is free takes the next one, so a busy neighbour
// costs its share and no more. Items must be independent: who computes one must not matter.
// One caller at a time; the caller computes too. Who waits - a worker for the next phase, the
// caller for an item that another holds - spins for some microseconds (phases of one step follow
// each other closely), then sleeps: a processor that waits for a thread which a neighbour pushed
// aside is better left to that thread. Workers keep off the caller's processor, where they could
// only take turns with it; when the caller has slept for one of them for 200 us, it fetches that
// one there until the next phase. Not when they are pinned or more than the processors
// (docs/decisions/0005-threads.md).
class ThreadPool {
 public:
  // num_threads >= 1, the caller included. on_start runs once in each worker. `cpus`: empty, or the
  // processor of each thread; [0] is the caller's, who pins itself.
  ThreadPool(uint32_t num_threads, void (*on_start)(), std::span<const uint32_t> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // kExhausted: the system refused a thread. The caller then computes everything.
  const Status& status() const { return status_; }
  uint32_t num_threads() const { return static_cast<uint32_t>(workers_.size()) + 1; }

  // fn(item, thread) for each item in [0, num_items); thread in [0, num_threads()). Allocates
  // nothing. Returns when all are done, their writes visible to the caller; then throws what one of
  // them threw.
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
    std::atomic<bool> has_item{false};  // relaxed: a guess, whom to fetch
  };
  void Stop();
  void RunErased(uint32_t num_items, Erased call, void* fn);
  void Work(uint32_t thread);
  // Claims and runs items of the phase at hand until none is left.
  void Claim(uint32_t thread);
  void WaitForItems(uint32_t num_items);
  // Workers may run where the caller may, but for this processor, its own. The kernel is asked only
  // when it is another than before, or somebody was fetched.
  void KeepWorkersOff(int cpu);
  // Moves a worker that holds an item to the processor the caller runs on.
  void FetchWorker();

  std::vector<Worker> workers_;
  const bool pinned_;
  Status status_;
  std::optional<int> kept_off_;  // the processor
  bool restricted_ = false;      // whether the workers' masks lack it
  cpu_set_t at_start_;           // what all threads might use then
  Worker* fetched_ = nullptr;    // in this phase, the last
  int fetched_to_ = 0;           // the processor
  // The phase at hand: phase number (24 bits) | number of items (20) | next item (20). A claim is a
  // compare-and-swap of all three, so a worker that the kernel runs late can never claim an item of
  // a phase that has ended, and nobody waits for a worker that holds no item.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  std::atomic<Erased> call_{nullptr};  // relaxed: published by ticket_
  std::atomic<void*> fn_{nullptr};
  alignas(64) std::atomic<uint32_t> done_{0};   // items finished of this phase
  std::atomic<bool> caller_sleeps_{false};      // on done_, or is about to
  alignas(64) std::atomic<uint32_t> epoch_{0};  // what sleeping workers wait on
  std::atomic<uint32_t> sleepers_{0};           // workers that sleep, or are about to
  std::atomic<bool> stop_{false};
  std::atomic<bool> threw_{false};  // an item of this phase; the first one writes thrown_
  std::exception_ptr thrown_;       // published by done_
};

}  // namespace kvasir
