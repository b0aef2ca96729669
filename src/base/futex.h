// Sleeping on a word with Linux's futex(2), without counting or spinning.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "base/check.h"

namespace kvasir {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

// Sleeps while `word` is `expected`, until a wake. May return without a reason: check again.
inline void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

// Waits like FutexWait, for at most timeout_ns. REQUIRES: timeout_ns is less than a second.
inline void FutexWaitFor(const std::atomic<uint32_t>& word, uint32_t expected,
                         uint32_t timeout_ns) {
  KV_DCHECK(timeout_ns < 1'000'000'000);
  const timespec timeout{0, timeout_ns};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, &timeout, nullptr, 0);
}

// Wakes up to `count` threads that sleep on `word`.
inline void FutexWake(const std::atomic<uint32_t>& word, uint32_t count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

}  // namespace kvasir
