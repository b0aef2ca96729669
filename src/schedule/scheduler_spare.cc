// Requests with only_when_idle: work for later, which gives way to everything else at once.
#include "schedule/scheduler.h"

namespace kvasir {

void Scheduler::BeginSpare() {
  if (spare_.empty() || !waiting_.empty() || !running_.empty()) return;
  waiting_.push_back(nullptr);  // first: it may throw
  waiting_.back() = std::move(spare_.front());
  spare_.pop_front();
}

void Scheduler::StopSpare(Spare which) {
  const auto end = [&](std::deque<std::unique_ptr<Request>>& requests) {
    std::erase_if(requests, [&](std::unique_ptr<Request>& request) {
      if (!request->spec.only_when_idle) return false;
      ended_.reserve(ended_.size() + 1);
      EndRequest(*request, FinishReason::kCancelled, nullptr);
      ended_.push_back(std::move(request));
      return true;
    });
  };
  for (const auto& request : running_) {
    if (request->spec.only_when_idle && !request->done()) {
      EndRequest(*request, FinishReason::kCancelled, nullptr);
    }
  }
  end(waiting_);
  if (which == Spare::kAll) end(spare_);
}

}  // namespace kvasir
