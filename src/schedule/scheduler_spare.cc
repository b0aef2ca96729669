// Requests with only_when_idle: work for later, which gives way to everything else at once.
#include "schedule/scheduler.h"

namespace kvasir {

void Scheduler::StopSpare(Spare which) {
  const auto end = [&](std::deque<std::unique_ptr<Request>>& requests) {
    std::erase_if(requests, [&](std::unique_ptr<Request>& request) {
      if (!request->spec.only_when_idle) return false;
      requests_.ended.reserve(requests_.ended.size() + 1);
      EndRequest(*request, FinishReason::kCancelled, nullptr);
      requests_.ended.push_back(std::move(request));
      return true;
    });
  };
  for (const auto& request : requests_.running) {
    if (request->spec.only_when_idle && !request->done()) {
      EndRequest(*request, FinishReason::kCancelled, nullptr);
    }
  }
  end(requests_.waiting);
  if (which == Spare::kAll) end(requests_.spare);
}

}  // namespace kvasir
