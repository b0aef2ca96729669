// Mutex: a std::mutex whose fields clang watches (-Wthread-safety): what is KV_GUARDED_BY it may
// be touched only where it is held.
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

// Holds a mutex while it lives, but for its waits.
class KV_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) KV_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~MutexLock() KV_THREAD_ATTRIBUTE(release_capability()) {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  // May end before `told` is notified: wait in a loop that looks at what was waited for. (clang
  // does not see into a predicate.)
  void Wait(std::condition_variable& told) { told.wait(lock_); }
  // The same, for `time` at most.
  void WaitFor(std::condition_variable& told, std::chrono::milliseconds time) {
    told.wait_for(lock_, time);
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace kvasir
