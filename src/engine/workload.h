// Workload: what an engine has to do, and how long a new request will wait for that.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

// Times in ns of the machine, as the step cost model sees them; 0 where nothing is known yet.
struct Workload {
  struct Tenant {
    std::string name;
    double weight = 1;
    double waiting_ns = 0;         // for its requests that wait
    uint32_t expected_answer = 0;  // tokens
    bool knows_answers = false;    // enough of them ended
  };
  std::vector<Tenant> tenants;  // [0]: those without a separate number
  double row_ns = 0;            // a token of a prompt
  double step_ns = 0;           // a step that generates a token of each of `parallel` answers
  double running_ns = 0;        // what running requests still need
  uint32_t running = 0, waiting = 0, parallel = 1;  // choices; requests; choices

  // Of a prompt's tokens that are not in the cache, and of an answer beside parallel - 1 others.
  double WorkNs(uint64_t new_tokens, uint64_t answer_tokens) const;
  Tenant& Of(std::string_view tenant);
};

// From now, in ns.
struct WaitEstimate {
  double start_ns = 0, first_token_ns = 0, end_ns = 0;
  bool knows_end = false;  // otherwise end_ns is a guess
};

// What a request of `tenant` has to expect. Before it starts, one running choice must end, then its
// tenant's requests that wait run, and meanwhile those of others, as far as their shares go.
// `new_tokens`: of its prompt, that are not in the cache; `answer_tokens`: the most it may get.
WaitEstimate EstimateWait(Workload& workload, std::string_view tenant, uint64_t new_tokens,
                          uint64_t answer_tokens);

}  // namespace kvasir
