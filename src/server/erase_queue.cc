#include "server/erase_queue.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/until_done.h"

namespace kvasir {

struct EraseQueue::State : std::enable_shared_from_this<State> {
  struct Tenant {  // exists while one of its erasures is in the engine
    std::vector<ErasureSink> running, waiting;
  };

  explicit State(Engine& given) : engine(given) {}

  void Begin(const std::string& tenant) {
    engine.Erase(tenant, [weak = weak_from_this(), tenant](const Erasure& erasure) {
      if (const std::shared_ptr<State> self = weak.lock()) self->OnErased(tenant, erasure);
    });
  }

  // noexcept: after an exception the engine would call again, but this state has already changed.
  void OnErased(const std::string& tenant, const Erasure& erasure) noexcept {
    std::vector<ErasureSink> told;
    bool again = false;
    {
      const MutexLock lock(mutex);
      const auto it = tenants.find(tenant);
      told = std::exchange(it->second.running, std::exchange(it->second.waiting, {}));
      again = !it->second.running.empty();
      if (!again) tenants.erase(it);
    }
    for (const ErasureSink& done : told) UntilDone([&] { done(erasure); });
    if (again) UntilDone([&] { Begin(tenant); });
  }

  Engine& engine;
  Mutex mutex;
  std::unordered_map<std::string, Tenant> tenants KV_GUARDED_BY(mutex);
};

EraseQueue::EraseQueue(Engine& engine) : state_(std::make_shared<State>(engine)) {}

void EraseQueue::Erase(const std::string& tenant, ErasureSink done) {
  {
    const MutexLock lock(state_->mutex);
    if (const auto it = state_->tenants.find(tenant); it != state_->tenants.end()) {
      it->second.waiting.push_back(std::move(done));
      return;
    }
    State::Tenant first;
    first.running.push_back(std::move(done));
    state_->tenants.emplace(tenant, std::move(first));
  }
  UntilDone([&] { state_->Begin(tenant); });  // the tenant's entry exists already
}

}  // namespace kvasir
