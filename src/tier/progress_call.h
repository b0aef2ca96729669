// ProgressCall: what a tier's threads call when something has changed for the tier's user.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <utility>

#include "base/mutex.h"

namespace kvasir {

// Thread-safe.
class ProgressCall {
 public:
  // Waits until no call of the one before is under way.
  void Set(std::function<void()> call) {
    MutexLock lock(mutex_);
    while (num_calls_ > 0) lock.Wait(ended_);
    call_ = std::move(call);
  }
  void Call() {
    const std::function<void()>* call;
    {
      MutexLock lock(mutex_);
      if (is_stopped_ || !call_) return;
      call = &call_;  // Set waits for this call
      ++num_calls_;
    }
    try {
      (*call)();
    } catch (...) {  // it had no memory; the next one tells as much
    }
    MutexLock lock(mutex_);
    --num_calls_;
    ended_.notify_all();
  }
  // Waits until no call is under way. None begins any more.
  void Stop() {
    MutexLock lock(mutex_);
    is_stopped_ = true;
    while (num_calls_ > 0) lock.Wait(ended_);
  }

 private:
  Mutex mutex_;
  std::condition_variable ended_;
  std::function<void()> call_ KV_GUARDED_BY(mutex_);
  uint32_t num_calls_ KV_GUARDED_BY(mutex_) = 0;  // that have not returned
  bool is_stopped_ KV_GUARDED_BY(mutex_) = false;
};

}  // namespace kvasir
