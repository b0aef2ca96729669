#include "schedule/request_queues.h"

#include <algorithm>
#include <utility>

#include "base/begins_with.h"

namespace kvasir {
namespace {

bool IsOlder(const std::unique_ptr<Request>& a, const std::unique_ptr<Request>& b) {
  return a->times.submitted_ns != b->times.submitted_ns
             ? a->times.submitted_ns < b->times.submitted_ns
             : a->id < b->id;
}

// Returns whether the head and one of the spans that are computed after it begin with `path`.
bool HasPartOn(const Request& request, std::span<const TokenId> path) {
  if (!request.spans.plan || path.size() <= request.spans.plan->head()) return false;
  const std::span<const TokenId> prompt = request.spec.prompt;
  const uint32_t head = request.spans.plan->head();
  if (!BeginsWith(prompt, path.first(head))) return false;
  return std::ranges::any_of(request.spans.plan->parts(), [&](const SpanPlan::Part& part) {
    return BeginsWith(prompt.subspan(part.begin, part.end - part.begin), path.subspan(head));
  });
}

}  // namespace

bool RequestQueues::HasRequestOf(uint32_t tenant) const {
  const auto is_its = [&](const auto& request) { return request->tenant == tenant; };
  return std::ranges::any_of(running, is_its) || std::ranges::any_of(waiting, is_its) ||
         std::ranges::any_of(ended, is_its) || std::ranges::any_of(spare, is_its);
}

void RequestQueues::Admit(size_t waiting_index) {
  const auto at = waiting.begin() + static_cast<ptrdiff_t>(waiting_index);
  running.insert(std::ranges::upper_bound(running, *at, IsOlder), std::move(*at));
  waiting.erase(at);
}

void RequestQueues::Preempt(size_t running_index) {
  const auto at = running.begin() + static_cast<ptrdiff_t>(running_index);
  const auto is_after = [&](const auto& other) {
    return !other->resume.preempted || IsOlder(*at, other);
  };
  const auto place = waiting.insert(std::ranges::find_if(waiting, is_after), nullptr);
  *place = std::move(*at);
  running.erase(at);
}

void RequestQueues::PutBack(size_t running_index) {
  waiting.push_front(nullptr);  // first: it may throw
  const auto at = running.begin() + static_cast<ptrdiff_t>(running_index);
  waiting.front() = std::move(*at);
  running.erase(at);
}

void RequestQueues::BeginSpare() {
  if (spare.empty() || !waiting.empty() || !running.empty()) return;
  waiting.push_back(nullptr);  // first: it may throw
  waiting.back() = std::move(spare.front());
  spare.pop_front();
}

void RequestQueues::CollectEnded() {
  ended.reserve(ended.size() + running.size());  // if this throws, nothing has moved yet
  for (auto& request : running) {
    if (request->done()) ended.push_back(std::move(request));
  }
  std::erase(running, nullptr);
}

std::vector<Request*> RequestQueues::StopSharing(std::string_view owner,
                                                 std::span<const TokenId> path) {
  std::vector<Request*> stopped;
  const auto begins = [&](std::span<const TokenId> tokens) { return BeginsWith(tokens, path); };
  const auto stop = [&](const auto& requests) {
    for (const auto& request : requests) {
      if (request->cache_owner() != owner) continue;
      const bool is_on_path =
          begins(request->spec.prompt) || HasPartOn(*request, path) ||
          std::ranges::any_of(request->answer.sequences, begins,
                              [](const auto& sequence) { return std::span(sequence->tokens); });
      if (!is_on_path) continue;
      request->is_erased = true;
      request->wait.resident_tokens = 0;
      for (const auto& sequence : request->answer.sequences) sequence->kv.LeaveIndex();
      for (const auto& part : request->spans.parts) part->sequence.kv.LeaveIndex();
      stopped.push_back(request.get());
    }
  };
  stop(waiting);
  stop(spare);
  stopped.clear();
  stop(running);
  return stopped;
}

}  // namespace kvasir
