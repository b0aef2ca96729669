#include "api/turn_preparer.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/mutex.h"

namespace kvasir {
namespace {

constexpr size_t kMostTurnsAhead = 64;

}  // namespace

struct TurnPreparer::State {
  struct Job {
    uint64_t number;
    std::string session;
    RequestId id;
  };
  mutable Mutex mutex;
  std::deque<Job> jobs KV_GUARDED_BY(mutex);
  uint64_t next KV_GUARDED_BY(mutex) = 0;
  uint64_t epoch KV_GUARDED_BY(mutex) = 0;
};

TurnPreparer::TurnPreparer(Engine& engine) : engine_(engine), state_(std::make_shared<State>()) {}

uint64_t TurnPreparer::epoch() const {
  const MutexLock lock(state_->mutex);
  return state_->epoch;
}

void TurnPreparer::Submit(GenerateRequest request, std::string session, uint64_t epoch) {
  // Under the lock, so that who cancels finds it; no sink waits for the engine.
  const MutexLock lock(state_->mutex);
  if (epoch != state_->epoch) return;
  if (state_->jobs.size() >= kMostTurnsAhead) {
    engine_.Cancel(state_->jobs.front().id);
    state_->jobs.pop_front();
  }
  const uint64_t number = state_->next++;
  const auto id = engine_.Submit(std::move(request), [state = state_, number](const Event& event) {
    if (!event.last) return;
    const MutexLock ended(state->mutex);
    std::erase_if(state->jobs, [&](const State::Job& job) { return job.number == number; });
  });
  if (id) state_->jobs.push_back({number, std::move(session), *id});
}

void TurnPreparer::Cancel(std::string_view session) {
  const MutexLock lock(state_->mutex);
  for (const State::Job& job : state_->jobs) {
    if (job.session == session) engine_.Cancel(job.id);
  }
}

void TurnPreparer::CancelAll() {
  const MutexLock lock(state_->mutex);
  ++state_->epoch;
  for (const State::Job& job : state_->jobs) engine_.Cancel(job.id);
}

}  // namespace kvasir
