// PreparePool: threads that turn request bodies into prompts, separate from those that read and
// write sockets.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/memory_meter.h"
#include "base/mutex.h"
#include "kvasir/status.h"

namespace kvasir {

// Runs tasks in two lanes, so that no request waits for a body much larger than its own: one thread
// takes only small bodies, the other one large bodies first. In a lane tenants take turns; the
// tasks of one tenant keep their order. Each lane has a memory quota. Thread-safe.
class PreparePool {
 public:
  // Must not throw; runs to its end on a thread of the pool. `quota` is that of its lane.
  using Task = std::function<void(MemoryQuota& quota)>;

  // REQUIRES: the quotas outlive the pool and all shares that tasks keep.
  PreparePool(MemoryQuota& small, MemoryQuota& large) : small_(small), large_(large) {}
  ~PreparePool() { Stop(); }
  PreparePool(const PreparePool&) = delete;
  PreparePool& operator=(const PreparePool&) = delete;

  // kExhausted when the system refuses a thread.
  Status Start();
  // Waits for the running tasks; the pool's destructor drops those that wait.
  void Stop();
  void Run(const std::string& tenant, size_t body_bytes, Task task);
  size_t num_waiting() const;

 private:
  // Waiting tasks. A tenant is in `turns` exactly once while it has any.
  struct Lane {
    explicit Lane(MemoryQuota& of_lane) : quota(of_lane) {}
    MemoryQuota& quota;
    std::map<std::string, std::deque<Task>> waiting;
    std::list<std::string> turns;
    size_t size = 0;
  };

  void Work(bool takes_large);
  static std::optional<Task> Take(Lane& lane);

  mutable Mutex mutex_;
  std::condition_variable changed_;
  Lane small_ KV_GUARDED_BY(mutex_);
  Lane large_ KV_GUARDED_BY(mutex_);
  bool stopping_ KV_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvasir
