// Mutex: a std::mutex for clang's -Wthread-safety: fields that are KV_GUARDED_BY it may be used
// only while it is held.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define KV_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define KV_THREAD_ATTRIBUTE(x)
#endif
#define KV_GUARDED_BY(mutex) KV_THREAD_ATTRIBUTE(guarded_by(mutex))
#define KV_REQUIRES(mutex) KV_THREAD_ATTRIBUTE(requires_capability(mutex))

namespace kvasir {

class KV_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex while it exists, except during its waits.
class KV_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) KV_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~MutexLock() KV_THREAD_ATTRIBUTE(release_capability()) {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  // Waits, and may return before `told` is notified: call it in a loop that checks the condition.
  // (clang cannot check a predicate.)
  void Wait(std::condition_variable& told) { told.wait(lock_); }
  // Waits like Wait, for at most `time`.
  void WaitFor(std::condition_variable& told, std::chrono::milliseconds time) {
    told.wait_for(lock_, time);
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace kvasir
