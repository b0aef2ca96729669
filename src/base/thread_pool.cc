#include "base/thread_pool.h"

#include "base/check.h"

namespace kvasir {
namespace {

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

constexpr int kSpins = 2000;  // about 20-60 us: longer than the gap between two phases of a step
constexpr int kItemBits = 20;
constexpr uint64_t kItemMask = (uint64_t{1} << kItemBits) - 1;

}  // namespace

ThreadPool::ThreadPool(uint32_t num_threads, void (*on_start)()) {
  for (uint32_t i = 1; i < num_threads; ++i) {
    workers_.emplace_back([this, i, on_start] { Work(i, on_start); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);  // publishes stop_
  epoch_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::Claim(uint32_t thread) {
  // Acquire: the caller's writes before this phase, and call_ and fn_, are visible.
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t item = ticket & kItemMask;
    if (item >= ((ticket >> kItemBits) & kItemMask)) return;
    const Erased call = call_.load(std::memory_order_relaxed);
    void* fn = fn_.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acquire)) continue;
    // The item is ours, so the phase cannot have ended since the loads above.
    call(fn, static_cast<uint32_t>(item), thread);
    done_.fetch_add(1, std::memory_order_release);  // publishes the item's writes
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::RunErased(uint32_t num_items, Erased call, void* fn) {
  KV_CHECK(num_items <= kItemMask);
  call_.store(call, std::memory_order_relaxed);
  fn_.store(fn, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const uint64_t phase = (ticket_.load(std::memory_order_relaxed) >> (2 * kItemBits)) + 1;
  ticket_.store(phase << (2 * kItemBits) | uint64_t{num_items} << kItemBits,
                std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  Claim(0);
  // Acquire: the workers' writes become visible. Only items that somebody holds are waited for.
  for (int spin = 0; done_.load(std::memory_order_acquire) != num_items; ++spin) {
    if (spin < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::Work(uint32_t thread, void (*on_start)()) {
  if (on_start != nullptr) on_start();
  uint32_t seen = 0;
  for (;;) {
    uint32_t epoch;
    for (int spin = 0; (epoch = epoch_.load(std::memory_order_acquire)) == seen; ++spin) {
      if (spin < kSpins) {
        Pause();
      } else {
        epoch_.wait(seen, std::memory_order_acquire);
      }
    }
    seen = epoch;
    if (stop_.load(std::memory_order_relaxed)) return;
    Claim(thread);
  }
}

}  // namespace kvasir
