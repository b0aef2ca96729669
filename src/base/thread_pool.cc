#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/cpu_topology.h"
#include "base/futex.h"
#include "base/start_thread.h"

namespace kvasir {
namespace {

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

constexpr int kItemBits = 20;
constexpr uint64_t kItemMask = (uint64_t{1} << kItemBits) - 1;

// Longer than the gap between two phases of a step, shorter than a sleep and a wake. After this
// time the awaited thread most likely has no processor, and spinning on would keep it from getting
// one (docs/decisions/0005-threads.md has the figures).
constexpr uint64_t kSpinNs = 50'000;
// When no item ends while the caller sleeps for so long, the worker with the item may have no
// processor, so the caller gives it its own. A long item looks the same; then the move only costs
// some system calls.
constexpr uint32_t kFetchNs = 200'000;
constexpr int kLooks = 8;  // checks between two readings of the clock

// Spins until ready(), at most for kSpinNs; whether it became ready.
template <typename Ready>
bool SpinUntil(Ready ready) {
  uint64_t end_ns = 0;
  for (;;) {
    for (int i = 0; i < kLooks; ++i) {
      if (ready()) return true;
      Pause();
    }
    const uint64_t now_ns = MonotonicNs();
    if (end_ns == 0) end_ns = now_ns + kSpinNs;
    if (now_ns >= end_ns) return ready();
  }
}

// Moves the thread to these CPUs; if the kernel refuses, it stays where it is.
void SetMask(std::thread& thread, const cpu_set_t& cpus) {
  pthread_setaffinity_np(thread.native_handle(), sizeof(cpus), &cpus);
}

}  // namespace

ThreadPool::ThreadPool(uint32_t num_threads, void (*on_start)(), std::span<const uint32_t> cpus)
    : workers_(num_threads - 1), pinned_(!cpus.empty()) {
  CPU_ZERO(&at_start_);
  sched_getaffinity(0, sizeof(at_start_), &at_start_);
  for (uint32_t i = 1; i < num_threads; ++i) {
    const std::optional<uint32_t> cpu = cpus.empty() ? std::nullopt : std::optional(cpus[i]);
    Result<std::thread> thread = StartThread("compute", [this, i, on_start, cpu] {
      if (cpu) PinThisThread({*cpu});  // if refused, it runs anywhere
      if (on_start != nullptr) on_start();
      Work(i);
    });
    if (!thread) {
      status_ = tl::unexpected(std::move(thread).error());
      Stop();
      workers_.clear();
      return;
    }
    workers_[i - 1].thread = *std::move(thread);
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_seq_cst);  // publishes stop_
  FutexWake(epoch_, num_threads());
  for (Worker& worker : workers_) {
    if (worker.thread.joinable()) worker.thread.join();
  }
}

void ThreadPool::Claim(uint32_t thread) {
  // Acquire: the caller's writes before this phase, and call_ and fn_, are visible.
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t item = ticket & kItemMask;
    const auto num_items = static_cast<uint32_t>((ticket >> kItemBits) & kItemMask);
    if (item >= num_items) return;
    const Erased call = call_.load(std::memory_order_relaxed);
    void* fn = fn_.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acquire)) continue;
    // The item is ours, so the phase cannot have ended since the loads above.
    if (thread > 0) workers_[thread - 1].has_item.store(true, std::memory_order_relaxed);
    try {
      call(fn, static_cast<uint32_t>(item), thread);
    } catch (...) {  // memory was refused; the caller rethrows it after the phase
      if (!threw_.exchange(true, std::memory_order_relaxed)) thrown_ = std::current_exception();
    }
    if (thread > 0) workers_[thread - 1].has_item.store(false, std::memory_order_relaxed);
    // Publishes the item's writes. Sequentially consistent, like the next load: either the
    // caller sees the last item done before it sleeps, or this thread sees that it sleeps.
    const uint32_t done = done_.fetch_add(1, std::memory_order_seq_cst) + 1;
    if (done == num_items && caller_sleeps_.load(std::memory_order_seq_cst)) FutexWake(done_, 1);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::KeepWorkersOff(int cpu) {
  if (pinned_ || (cpu == kept_off_ && fetched_ == nullptr)) return;
  kept_off_ = cpu;  // even if it fails: not repeated in each phase
  fetched_ = nullptr;
  cpu_set_t cpus;
  const bool enough =
      sched_getaffinity(0, sizeof(cpus), &cpus) == 0 &&  // else more processors than bits
      CPU_COUNT(&cpus) >= static_cast<int>(num_threads());
  if (!enough) {  // they may have been enough at the last call
    if (!restricted_) return;
    cpus = at_start_;
  } else {
    CPU_CLR(static_cast<size_t>(cpu), &cpus);
  }
  restricted_ = enough;
  for (Worker& worker : workers_) SetMask(worker.thread, cpus);
}

void ThreadPool::FetchWorker() {
  const auto has_item = [](const Worker& w) { return w.has_item.load(std::memory_order_relaxed); };
  const int here = sched_getcpu();
  Worker* worker = fetched_;
  if (worker != nullptr && has_item(*worker)) {
    if (here == fetched_to_) return;  // already moved there
  } else {
    const auto found = std::ranges::find_if(workers_, has_item);
    if (found == workers_.end()) return;
    worker = &*found;
  }
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(static_cast<size_t>(here), &cpus);
  SetMask(worker->thread, cpus);
  fetched_ = worker;
  fetched_to_ = here;
}

void ThreadPool::RunErased(uint32_t num_items, Erased call, void* fn) {
  KV_CHECK(num_items <= kItemMask);
  KeepWorkersOff(sched_getcpu());
  call_.store(call, std::memory_order_relaxed);
  fn_.store(fn, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const uint64_t phase = (ticket_.load(std::memory_order_relaxed) >> (2 * kItemBits)) + 1;
  ticket_.store(phase << (2 * kItemBits) | uint64_t{num_items} << kItemBits,
                std::memory_order_release);
  // Either this thread sees that a worker sleeps, or the worker sees the new epoch before it
  // sleeps.
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) FutexWake(epoch_, num_items - 1);
  Claim(0);
  WaitForItems(num_items);
  // Relaxed: WaitForItems has synchronised with the items.
  if (threw_.load(std::memory_order_relaxed)) {
    threw_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(thrown_, {}));
  }
}

void ThreadPool::WaitForItems(uint32_t num_items) {
  // Acquire: the workers' writes become visible. Waits only for items that a worker holds.
  if (SpinUntil([&] { return done_.load(std::memory_order_acquire) == num_items; })) return;
  caller_sleeps_.store(true, std::memory_order_seq_cst);
  for (uint32_t done; (done = done_.load(std::memory_order_seq_cst)) != num_items;) {
    if (!restricted_) {
      FutexWait(done_, done);
    } else {
      FutexWaitFor(done_, done, kFetchNs);
      if (done_.load(std::memory_order_seq_cst) == done) FetchWorker();
    }
  }
  caller_sleeps_.store(false, std::memory_order_relaxed);
}

void ThreadPool::Work(uint32_t thread) {
  for (uint32_t seen = 0;;) {
    const auto woken = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
    if (!SpinUntil(woken)) {
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      while (epoch_.load(std::memory_order_seq_cst) == seen) FutexWait(epoch_, seen);
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    Claim(thread);
  }
}

}  // namespace kvasir
