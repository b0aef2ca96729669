#include "server/erase_queue.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/until_done.h"

namespace kvasir {

struct EraseQueue::State : std::enable_shared_from_this<State> {
  struct Owner {  // exists while one of its erasures is in the engine
    std::vector<ErasureSink> running, waiting;
  };

  explicit State(Engine& given) : engine(given) {}

  void Begin(const std::string& owner) {
    engine.Erase(owner, [weak = weak_from_this(), owner](const Erasure& erasure) {
      if (const std::shared_ptr<State> self = weak.lock()) self->OnErased(owner, erasure);
    });
  }

  // noexcept: after an exception the engine would call again, but this state
  // has already changed.
  void OnErased(const std::string& owner, const Erasure& erasure) noexcept {
    std::vector<ErasureSink> told;
    bool again = false;
    {
      const MutexLock lock(mutex);
      const auto it = owners.find(owner);
      told = std::exchange(it->second.running, std::exchange(it->second.waiting, {}));
      again = !it->second.running.empty();
      if (!again) owners.erase(it);
    }
    for (const ErasureSink& done : told) UntilDone([&] { done(erasure); });
    if (again) UntilDone([&] { Begin(owner); });
  }

  Engine& engine;
  Mutex mutex;
  std::unordered_map<std::string, Owner> owners KV_GUARDED_BY(mutex);
};

EraseQueue::EraseQueue(Engine& engine) : state_(std::make_shared<State>(engine)) {}

void EraseQueue::Erase(const std::string& owner, ErasureSink done) {
  {
    const MutexLock lock(state_->mutex);
    if (const auto it = state_->owners.find(owner); it != state_->owners.end()) {
      it->second.waiting.push_back(std::move(done));
      return;
    }
    State::Owner first;
    first.running.push_back(std::move(done));
    state_->owners.emplace(owner, std::move(first));
  }
  UntilDone([&] { state_->Begin(owner); });  // the owner's entry exists already
}

void EraseQueue::EraseAll(const std::vector<std::string>& owners, ErasureSink done) {
  std::vector<ErasureSink> sinks = SinksOfSum(owners.size(), std::move(done));
  for (size_t i = 0; i < owners.size(); ++i) Erase(owners[i], std::move(sinks[i]));
}

std::vector<ErasureSink> SinksOfSum(size_t count, ErasureSink done) {
  struct All {
    std::vector<std::optional<Erasure>> parts;
    ErasureSink done;
  };
  const auto all = std::make_shared<All>();
  all->parts.resize(count);
  all->done = std::move(done);
  std::vector<ErasureSink> sinks;
  for (size_t i = 0; i < count; ++i) {
    sinks.push_back([all,
                     i](const Erasure& erasure) {  // after an exception it is called again
      all->parts[i] = erasure;
      Erasure sum;
      for (const std::optional<Erasure>& part : all->parts) {
        if (!part) return;
        sum.blocks += part->blocks;
        sum.tokens += part->tokens;
        sum.cursors += part->cursors;
        sum.kept_shared = std::max(sum.kept_shared, part->kept_shared);
        sum.disk_blocks += part->disk_blocks;
        sum.disk_bytes += part->disk_bytes;
        sum.locked_stores = std::max(sum.locked_stores, part->locked_stores);
        if (part->remote) {
          if (!sum.remote) sum.remote.emplace();
          sum.remote->epoch = std::max(sum.remote->epoch, part->remote->epoch);
          sum.remote->records += part->remote->records;
          sum.remote->complete &= part->remote->complete;
        }
        if (!sum.error) sum.error = part->error;
      }
      all->done(sum);
    });
  }
  return sinks;
}

}  // namespace kvasir
