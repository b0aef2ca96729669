// SchedulingPolicy: who runs next, with how many rows, and who gives way.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "block/ids.h"
#include "kvasir/engine_options.h"
#include "kvasir/request_trace.h"
#include "schedule/step_cost.h"

namespace kvasir {

// What a policy sees of a request that waits or runs.
struct RequestView {
  enum class State : uint8_t {
    kWaiting,    // in its tenant's queue: it never ran, or made room for one of a better priority
    kPreempted,  // ran, gave up its blocks, and goes on before others of its tenant
    kRunning,
  };
  State state = State::kWaiting;
  uint32_t tenant = 0;   // index of View::tenants
  uint32_t choices = 1;  // that are not done
  int32_t priority = 0;  // lower first
  uint64_t arrival_ns = 0;
  // Waiting ones: no room was found for it, and no block was released since; how many that came
  // later were admitted before it.
  bool has_no_room = false;
  uint32_t overtaken = 0;
  // The account whose blocks it takes; whether these are more than are guaranteed to that account.
  AccountId account = kNobody;
  bool above_guarantee = false;
  // It has no room, or is starved, because its account has its maximum: only what that account
  // releases helps.
  bool over_quota = false;
  bool is_owed =
      false;  // waiting: it has no room, but its account's guarantee covers what it needs
  uint32_t resident_tokens = 0;  // waiting: of its prompt, as far as that is known
  bool follows = false;  // what it needs is being computed for another request: it waits for that
  uint32_t preemptions = 0;  // of it so far
  // Running ones: its reservation ends here and could not grow; tokens that a preemption may cost,
  // those of others' prompts not counted; tokens since it was admitted last.
  bool is_starved = false;
  uint32_t recompute_tokens = 0, tokens_since_resume = 0;
};

// A choice of a running request that has tokens to compute, or whose prompt a Cursor answers.
struct SequenceView {
  uint32_t request;  // index of View::requests
  uint32_t pending;  // tokens; at most the request's limit of rows in a step
  bool decodes;      // its only pending token was just sampled
  double kv_bytes;   // that one row of it reads
  // Tokens that are drafted for it, and the chance that one of them is right when those before it
  // are. Only of one that decodes.
  uint32_t drafted = 0;
  double draft_chance = 0;
  // Tokens of its source, which an encoder reads whole before any row of it; 0: that is done.
  uint32_t source_tokens = 0;
};

// A tenant with requests here.
struct TenantView {
  // Time of the machine that it was given, in ns, by its weight; a tenant that was idle starts at
  // the least of the others (virtual token counters, Sheng et al., OSDI 2024), or at the largest of
  // all where all were idle.
  double charge_ns = 0;
  uint32_t running = 0;  // choices
  uint32_t max_running = std::numeric_limits<uint32_t>::max();

  // Tells whether so many choices more may run. A request of more choices than max_running, which
  // was accepted before a reload lowered that, runs alone.
  bool may_run(uint32_t choices) const {
    return running == 0 || (running <= max_running && choices <= max_running - running);
  }
};

struct View {
  uint64_t now_ns = 0;
  // Running ones, the oldest first, then those that wait, in the order in which they came.
  std::span<const RequestView> requests;
  std::span<const SequenceView> sequences;
  std::span<const TenantView> tenants;
  uint32_t parallel = 0;  // choices that run at once
  uint32_t max_rows = 0;  // of a step; at least parallel
  const StepCost* cost = nullptr;
  uint64_t target_step_ns = 0;  // while something decodes; 0: as long as it takes
  bool drafts_always = false;   // as much as is drafted, whatever it costs
  uint32_t max_draft_rows = 0;  // of a step, beside a row of each sequence
};

// The scheduler carries out a preemption or an admission, then asks again, until there is none.
struct StepPlan {
  std::optional<uint32_t> preempt, admit;  // indices of View::requests
  PreemptCause cause = PreemptCause::kMemory;
  std::vector<uint32_t> rows;        // [View::sequences]; 0: none in this step
  std::vector<uint32_t> draft_rows;  // [View::sequences]: of its drafted tokens, beside `rows`
  std::vector<uint32_t>
      source_rows;  // [View::sequences]: its source_tokens, or 0: not in this step
};

// Returns the rows of prompts, at most `most`, that a step of this work has room for, so that it
// takes target_ns at most (0: however long it takes). Each of them reads row_bytes of KV. O(log
// most).
uint32_t RowsWithin(const StepCost& cost, double target_ns, const StepWork& work, uint32_t most,
                    double row_bytes);

// Fills in plan.draft_rows and adds them to `work`, which has the rows that decode and no others:
// as many as give most expected tokens a second, by the sequences' chances and the cost of steps,
// at most `most` in all, and none that makes the step longer than target_step_ns. O(most *
// sequences).
void PlanDrafts(const View& view, uint32_t most, StepPlan& plan, StepWork& work);

// A pure decision: the same view gives the same plan. No clock, lock or allocation: it fills a plan
// whose vectors have room.
class SchedulingPolicy {
 public:
  // Later requests that may start before one that has no room; then all that it goes before wait.
  static constexpr uint32_t kMaxOvertaken = 16;
  // Requests without room that one may pass. It bounds what a release of blocks costs, after which
  // each of them is tried again.
  static constexpr uint32_t kMaxPassed = 16;
  // Waiting requests of a tenant, of one priority, of which the one with most resident tokens goes
  // first: what it reuses may be evicted while it waits. It passes the others, as above.
  static constexpr uint32_t kMaxCompared = 8;
  // A request that goes on after a preemption is left alone for so many tokens, and after so many
  // preemptions for good.
  static constexpr uint32_t kCooldownTokens = 32, kMaxPreemptions = 4;
  // Sources that one step reads.
  static constexpr uint32_t kMaxSources = 32;
  // Rows of prompts in a step, however long it takes.
  static constexpr uint32_t kLeastPrefillRows = 16;

  // Tenants are served in order of their charges. If one is charged so much more than another one
  // (and the time of a whole step more), and has more than so many times the choices running, the
  // other one may take the place of one of its requests. With a share of 1, tenants that always
  // wait preempt each other all the time; with 4, a flood doubles the first token's time of a
  // quiet neighbour (bench/simulation_bench).
  static constexpr double kUnfairNs = 0.25e9;
  static constexpr uint32_t kUnfairShare = 2;
  // A request that waits so long counts as one priority lower.
  static constexpr double kAgingNs = 5e9;

  virtual ~SchedulingPolicy() = default;
  // O(requests + sequences^2 + tenants).
  void Decide(const View& view, StepPlan& plan) const;

 private:
  // Returns whether a goes before b: waiting requests to be admitted, running ones to compute
  // prompts.
  virtual bool GoesBefore(const View& view, uint32_t a, uint32_t b) const = 0;
  virtual bool IsFair() const = 0;
  // Returns whether it may start now, if there is room: neither a leader nor its tenant's limit
  // holds it up.
  static bool IsReady(const View& view, uint32_t request);
  static uint32_t MostResident(const View& view, uint32_t first);
  std::optional<uint32_t> Next(const View& view) const;
  std::optional<uint32_t> OwedVictim(const View& view) const;
  std::optional<uint32_t> UnfairVictim(const View& view) const;
  std::optional<uint32_t> PriorityVictim(const View& view) const;
  void PlanRows(const View& view, StepPlan& plan) const;
};

// Returns the policy of a --schedule: "fair" (tenants by their charges, then priority, then
// arrival) or "fifo" (first come, first served).
std::unique_ptr<const SchedulingPolicy> MakeSchedulingPolicy(Schedule schedule);

}  // namespace kvasir
