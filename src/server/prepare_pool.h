// PreparePool: the threads that make prompts of bodies, apart from those that read and write
// sockets.
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

// Runs tasks in two lanes, so that nobody waits for a body much larger than his own: one thread
// takes small bodies only, the other one large bodies first. In a lane tenants take turns; a
// tenant's own tasks keep their order. Each lane has a quota of memory. Thread-safe.
class PreparePool {
 public:
  // Must not throw; runs to its end on a thread of the pool. `quota`: of its lane.
  using Task = std::function<void(MemoryQuota& quota)>;

  // The quotas must outlive the shares that tasks keep of them, also those kept after the pool.
  PreparePool(MemoryQuota& small, MemoryQuota& large) : small_(small), large_(large) {}
  ~PreparePool() { Stop(); }
  PreparePool(const PreparePool&) = delete;
  PreparePool& operator=(const PreparePool&) = delete;

  // kExhausted: the system gives no thread.
  Status Start();
  // Waits for the tasks that run; those that wait are dropped at the pool's end.
  void Stop();
  void Run(const std::string& tenant, size_t body_bytes, Task task);
  size_t num_waiting() const;

 private:
  // Tasks that wait. A tenant is in `turns` once while it has some.
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
