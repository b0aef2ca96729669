// Whether EngineOnThread has room and time for a request now; its refusals and counts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/result.h"
#include "base/sizes.h"
#include "engine/engine_on_thread.h"

namespace kvasir {

// Checks whether the tenant may have these requests now; then notes what they begin with.
Status EngineOnThread::CheckLoad(const std::string& tenant,
                                 std::span<const std::unique_ptr<Request>> checked,
                                 std::span<const SeenPrompts::Beginnings> beginnings,
                                 uint64_t bytes) {
  KV_TRY(CheckQuota(checked));
  if (Status room = CheckQueue(tenant, checked.size(), bytes); !room) {
    return Reject(QueueReason(room.error()), tenant, tl::unexpected(std::move(room.error())));
  }
  for (size_t i = 0; i < checked.size(); ++i) {
    checked[i]->wait.seen_tokens =
        std::max(checked[i]->wait.seen_tokens, seen_prompts_.SeenTokens(beginnings[i]));
  }
  if (Status times = CheckTimes(checked); !times) {
    const bool late = times.error().code == Code::kUnavailable;  // else it waits too long
    return Reject(late ? RejectReason::kDeadline : RejectReason::kQueueTime, tenant,
                  tl::unexpected(std::move(times.error())));
  }
  for (size_t i = 0; i < checked.size(); ++i) {
    const GenerateRequest& spec = checked[i]->spec;
    if (!SharesCache(spec)) continue;
    std::vector<uint32_t> points =
        parts_.cache->ResumePointsOf(checked[i]->prompt_tokens(), spec.message_ends);
    std::erase_if(points, [&](uint32_t point) { return point > beginnings[i].tokens; });
    seen_prompts_.Add(beginnings[i], points);
  }
  return {};
}

TenantRules EngineOnThread::RulesOf(const std::string& tenant) const {
  const auto found = tenants_.rules.find(tenant);
  return found == tenants_.rules.end() ? TenantRules() : found->second;
}

// REQUIRES: they have one tenant.
Status EngineOnThread::CheckQuota(std::span<const std::unique_ptr<Request>> requests) const {
  for (const auto& request : requests) {
    const uint32_t most = RulesOf(request->spec.tenant).max_running;
    if (request->width() <= most) continue;
    return FailField(Code::kInvalidArgument, request->spec.beams ? "beams" : "n",
                     "{} at once; of this API key's tenant at most {} run at once",
                     request->width(), most);
  }
  return {};
}

// Says when a running choice is expected to end.
Error EngineOnThread::Full(Error error) const {
  constexpr double kLeastMs = 50;  // a client that comes back at once is likely to be refused again
  const MutexLock lock(stats_mutex_);
  error.retry_ms =
      static_cast<uint64_t>(std::max(std::ceil(published_.backlog.EndNs() / 1e6), kLeastMs));
  return error;
}

// Checks whether `count` more requests of a tenant, of so many bytes, may run or wait. The messages
// do not show the number or size of other tenants' requests.
Status EngineOnThread::CheckQueue(const std::string& tenant, uint64_t count, uint64_t bytes) const {
  const uint32_t limit = parts_.options.parallel + parts_.options.max_queued;
  if (places_.requests() + count > limit) {
    return tl::unexpected(
        Full({Code::kExhausted,
              fmt::format("engine: the queue has no room for {} more (at most {} may run or wait); "
                          "try again later",
                          count, CountText(limit, "request"))}));
  }
  if (places_.ExceedsShare(tenant, count, bytes, tenants_.rules, MonotonicNs())) {
    return tl::unexpected(
        Full({Code::kExhausted,
              "engine: the queue is more than half full, and the requests of this API key's tenant "
              "that run or wait are its share of it; try again later"}));
  }
  const TenantRules rules = RulesOf(tenant);
  if (rules.max_queued == TenantRules::kNoLimit) return {};
  const uint64_t own_limit =
      uint64_t{std::min(rules.max_running, parts_.options.parallel)} + rules.max_queued;
  const uint64_t present = places_.requests_of(tenant);
  if (present + count <= own_limit) return {};
  return tl::unexpected(
      Full({Code::kExhausted,
            fmt::format("max_queued: engine: of this API key's tenant at most {} may run or wait, "
                        "and it has {}; try again later",
                        CountText(own_limit, "request"), present),
            {},
            {},
            {},
            Cause::kMaxQueued}));
}

// Returns what a request that has not begun needs.
Backlog::Job EngineOnThread::JobOf(const Request& request, const Backlog& backlog) const {
  const uint32_t tenant = backlog.IndexOf(request.spec.tenant);
  return MakeJob(parts_.cache->layout(),
                 {.tenant = tenant,
                  .choices = request.width(),
                  .tokens = request.prompt_tokens(),
                  .new_tokens = request.new_tokens(),
                  .source_tokens = request.new_source_tokens(),
                  .max_answer = request.max_tokens,
                  .expected_answer = backlog.tenants[tenant].expected_answer});
}

// Refuses requests that are expected to start or to end too late.
Status EngineOnThread::CheckTimes(std::span<const std::unique_ptr<Request>> requests) const {
  Backlog backlog;
  {
    const MutexLock lock(stats_mutex_);
    backlog = published_.backlog;
  }
  if (!backlog.cost.knows_anything()) return {};
  std::vector<Backlog::Job> arrivals;  // that the engine's thread has not seen yet
  for (const Command& command : commands_) {
    const auto* request = std::get_if<std::unique_ptr<Request>>(&command);
    if (request == nullptr || (*request)->spec.only_when_idle) continue;
    arrivals.push_back(JobOf(**request, backlog));
  }
  const uint64_t now_ns = MonotonicNs();
  const double most_ms = parts_.options.max_queue_ms;
  for (const auto& request : requests) {
    arrivals.push_back(JobOf(*request, backlog));
    const WaitEstimate estimate = EstimateWait(backlog, arrivals, now_ns);
    const double start_ms = estimate.start_ns / 1e6;
    if (start_ms > most_ms) {
      Error error{Code::kExhausted,
                  fmt::format("engine: the request would start in about {:.1f} s, and requests may "
                              "wait {:.1f} s (--max-queue-ms); try again later",
                              start_ms / 1e3, most_ms / 1e3)};
      error.retry_ms = static_cast<uint64_t>(start_ms - most_ms) + 1;
      return tl::unexpected(std::move(error));
    }
    const double end_ns = estimate.knows_end ? estimate.end_ns : estimate.first_token_ns;
    const auto limit = request->spec.timeout_ms;
    if (limit && end_ns / 1e6 > static_cast<double>(*limit)) {
      return FailCause(
          Code::kUnavailable, Cause::kDeadline,
          "deadline: the request is expected to take {:.0f} ms, {:.0f} of them in the queue, "
          "and its time limit is {} ms; allow more time or ask for less",
          end_ns / 1e6, start_ms, *limit);
    }
    request->receipt.estimate_ms = estimate.first_token_ns / 1e6;
  }
  return {};
}

Status EngineOnThread::CheckRoom(const std::string& tenant) const {
  const MutexLock lock(mutex_);
  return CheckQueue(tenant, 1, 0);
}

void EngineOnThread::CountRefusal(RejectReason reason, const std::optional<std::string>& tenant) {
  counts_.CountRefusal(reason, tenant);
  const bool had_no_room = reason == RejectReason::kQueueFull || reason == RejectReason::kMemory;
  if (tenant && had_no_room) places_.NoteRefusal(*tenant, MonotonicNs());
}

tl::unexpected<Error> EngineOnThread::Reject(RejectReason reason, const std::string& tenant,
                                             tl::unexpected<Error> error) {
  CountRefusal(reason, tenant);
  return error;
}

void EngineOnThread::CountMiss(MissReason reason, uint32_t computed_tokens) {
  const MutexLock lock(mutex_);
  counts_.CountMiss(reason, computed_tokens);
}

void EngineOnThread::CountVolatile(uint32_t tokens) {
  const MutexLock lock(mutex_);
  counts_.CountVolatile(tokens);
}

void EngineOnThread::CountRejection(RejectReason reason, const std::optional<std::string>& tenant) {
  const MutexLock lock(mutex_);
  CountRefusal(reason, tenant);
}

}  // namespace kvasir
