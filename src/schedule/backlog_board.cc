#include "schedule/backlog_board.h"

#include "base/clock.h"

namespace kvasir {

BacklogBoard::BacklogBoard(const SchedulerOptions& options, const KvLayout& layout,
                           const RequestQueues& requests, const TenantBook& tenants,
                           const StepFigures& figures)
    : layout_(layout), requests_(requests), tenants_(tenants), figures_(figures) {
  backlog_.parallel = options.parallel;
  backlog_.max_rows = options.max_rows;
  backlog_.target_step_ns = static_cast<double>(options.target_step_ns);
  backlog_.running.reserve(options.parallel);
}

void BacklogBoard::Publish() {
  if (!on_backlog_) return;
  Backlog& all = backlog_;
  // Until then the cost model knows only long steps, and would take decoding for one of them.
  constexpr uint64_t kLeastDecodeSteps = 16;
  all.cost = figures_.cost();
  all.knows_decoding = figures_.stats().decode_steps >= kLeastDecodeSteps;
  all.step_begin_ns = MonotonicNs();
  constexpr size_t kMostPublished = 1024;  // of those that wait; the others are counted only
  FillTenants();
  all.running.clear();
  for (const auto& request : requests_.running) {
    if (request->spec.only_when_idle || request->done()) continue;
    const Sequence* sequence = request->answer.first_live();
    const bool prefills =
        !request->answer.prompt_done && sequence && !sequence->kv.tables().empty();
    const uint32_t new_tokens = request->answer.prompt_done ? 0
                                : prefills ? request->prompt_tokens() - sequence->kv.num_committed()
                                           : request->new_tokens();
    all.running.push_back(JobOf(*request, new_tokens));
  }
  all.waiting.clear();
  for (const auto& request : requests_.waiting) {
    if (request->spec.only_when_idle || request->done()) continue;
    Backlog::Tenant& tenant = all.tenants[request->tenant];
    if (tenant.waiting++ >= kPlayedStarts || all.waiting.size() >= kMostPublished) continue;
    all.waiting.push_back(JobOf(*request, request->new_tokens()));
  }
  on_backlog_(all);
}

void BacklogBoard::FillTenants() {
  backlog_.tenants.resize(tenants_.size());
  for (uint32_t i = 0; i < backlog_.tenants.size(); ++i) {
    Backlog::Tenant& tenant = backlog_.tenants[i];
    tenant.name = figures_.stats().tenants[i].name;
    tenant.weight = tenants_.weight(i);
    tenant.charge_ns = tenants_.views()[i].charge_ns;
    tenant.max_running = tenants_.views()[i].max_running;
    tenant.expected_answer = tenants_.lengths().Expected(i, 0);
    tenant.waiting = 0;
    tenant.knows_answers = tenants_.lengths().knows(i);
  }
}

// Returns what a request still needs, with so many tokens of its prompt to compute.
Backlog::Job BacklogBoard::JobOf(const Request& request, uint32_t new_tokens) const {
  const uint32_t so_far = request.answer.longest;
  const uint32_t expected = so_far == 0
                                ? backlog_.tenants[request.tenant].expected_answer
                                : tenants_.lengths().Expected(request.tenant, so_far) - so_far;
  return MakeJob(layout_, {.tenant = request.tenant,
                           .choices = request.num_live(),
                           .tokens = request.prompt_tokens() + so_far,
                           .new_tokens = new_tokens,
                           .source_tokens = request.new_source_tokens(),
                           .max_answer = request.max_tokens - so_far,
                           .expected_answer = expected});
}

}  // namespace kvasir
