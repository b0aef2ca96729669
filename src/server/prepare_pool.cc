#include "server/prepare_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "base/start_thread.h"
#include "base/wipe_stack.h"
#include "http/request_memory.h"

namespace kvasir {
namespace {

// A body of megabytes takes a second; it runs at a lower priority than small ones.
constexpr int kLargeNice = 10;

}  // namespace

void PreparePool::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  threads_.clear();
}

Status PreparePool::Start() {
  for (const bool takes_large : {false, true}) {
    KV_ASSIGN(threads_.emplace_back(),
              StartThread("preparing requests", [this, takes_large] { Work(takes_large); }));
  }
  return {};
}

void PreparePool::Run(const std::string& tenant, size_t body_bytes, Task task) {
  {
    const MutexLock lock(mutex_);
    Lane& lane = body_bytes <= kSmallBodyBytes ? small_ : large_;
    std::deque<Task>& own = lane.waiting[tenant];
    std::list<std::string> turn;
    if (own.empty()) turn.push_back(tenant);  // may throw, so it comes first
    own.push_back(std::move(task));
    lane.turns.splice(lane.turns.end(), turn);
    ++lane.size;
  }
  changed_.notify_all();
}

size_t PreparePool::num_waiting() const {
  const MutexLock lock(mutex_);
  return small_.size + large_.size;
}

std::optional<PreparePool::Task> PreparePool::Take(Lane& lane) {
  if (lane.turns.empty()) return std::nullopt;
  const auto own = lane.waiting.find(lane.turns.front());
  Task task = std::move(own->second.front());
  own->second.pop_front();
  --lane.size;
  if (own->second.empty()) {
    lane.waiting.erase(own);
    lane.turns.pop_front();
  } else {
    lane.turns.splice(lane.turns.end(), lane.turns, lane.turns.begin());
  }
  return task;
}

void PreparePool::Work(bool takes_large) {
  if (takes_large) setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLargeNice);
  while (true) {
    std::optional<Task> task;
    MemoryQuota* quota = nullptr;
    {
      MutexLock lock(mutex_);
      while (!task && !stopping_) {
        if (takes_large && (task = Take(large_))) quota = &large_.quota;
        if (!task && (task = Take(small_))) quota = &small_.quota;
        if (!task) lock.Wait(changed_);
      }
      if (!task) return;
    }
    (*task)(*quota);
    task.reset();
    WipeUnusedStack();
  }
}

}  // namespace kvasir
