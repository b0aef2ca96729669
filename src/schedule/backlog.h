// Backlog: what an engine has to do, and how long a new request will wait for that.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "block/kv_layout.h"
#include "schedule/step_cost.h"

namespace kvasir {

struct Backlog {
  struct Tenant {
    std::string name;
    double weight = 1;
    double charge_ns = 0;  // TenantView::charge_ns
    uint32_t max_running = std::numeric_limits<uint32_t>::max();
    uint32_t expected_answer = 0;  // tokens
    bool knows_answers = false;    // enough of them ended
    uint32_t waiting = 0;          // its requests that wait, also those that `waiting` leaves out
  };
  // A request.
  struct Job {
    uint32_t tenant = 0;       // index in `tenants`
    uint32_t choices = 1;      // that are not done
    double new_tokens = 0;     // of its prompt, that are not in the cache
    double answer_tokens = 0;  // that a choice still gets, as far as is expected
    bool ends_there = false;   // no choice gets more than that
    double prompt_row_bytes = 0, answer_row_bytes = 0;  // KV that a row of it reads
  };

  std::vector<Tenant> tenants;  // [0]: those without a separate number
  std::vector<Job> running;     // the oldest first
  std::vector<Job> waiting;     // in the order in which they came; of many of a tenant the first
  StepCost cost;
  bool knows_decoding = false;  // else cost knows steps with prompts only
  uint64_t step_begin_ns = 0;   // MonotonicNs: then the running ones began a step
  double target_step_ns = 0;    // View::target_step_ns
  uint32_t max_rows = 1, parallel = 1;

  double StepNs(const StepWork& work) const;
  // Returns the time of a row of a prompt, in a step that has as many of them as it may.
  double RowNs() const { return StepNs({.prefill_rows = max_rows}) / max_rows; }
  // Returns the time until a running choice ends, from now.
  double EndNs() const;
  // Returns the index of a tenant, or 0.
  uint32_t IndexOf(std::string_view tenant) const;
};

struct JobSize {
  uint32_t tenant = 0, choices = 1;
  uint32_t tokens = 0;                           // of the prompt, and of the answer so far
  uint32_t new_tokens = 0;                       // of the prompt, to compute
  uint32_t source_tokens = 0;                    // of a source, to read before
  uint32_t max_answer = 0, expected_answer = 0;  // tokens to come
};
Backlog::Job MakeJob(const KvLayout& layout, const JobSize& size);

// From now, in ns.
struct WaitEstimate {
  double start_ns = 0, first_token_ns = 0, end_ns = 0;
  bool knows_end = false;  // otherwise end_ns is a guess
  uint32_t rounds = 0;     // of equal steps that were played: the work of the estimate
};

// Returns what the last one of `arrivals` has to expect, which come now and which the engine has
// not seen yet: plays the steps ahead as the fair policy plans them, until that one has its first
// token. All choices whose lengths are not known are taken to end at a constant rate, which makes
// one of them end long before the mean. Zeros where nothing is known yet. O(n (parallel + tenants))
// for n jobs that go before it, of which those beyond kPlayedStarts are taken to start at the pace
// of these.
WaitEstimate EstimateWait(const Backlog& backlog, std::span<const Backlog::Job> arrivals,
                          uint64_t now_ns);
inline constexpr uint32_t kPlayedStarts = 64;

}  // namespace kvasir
