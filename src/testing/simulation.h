// Simulation: requests through the real Scheduler, policy and KvCache, on a machine that is a
// formula, in virtual time. Hours of a busy server take seconds, and each run gives the same
// decisions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/percentile.h"
#include "kvasir/engine_stats.h"
#include "schedule/scheduler.h"
#include "testing/recording.h"

namespace kvasir {

// A step takes step_ns + row_ns * rows + seen_ns * tokens that the rows' queries see, summed over
// rows.
struct MachineModel {
  double step_ns = 0, row_ns = 0, seen_ns = 0;
};
// Two machines with a model of 1e9 parameters: two CPU cores with AMX (docs/performance.md: 25 ms
// a token, 614 tokens of a prompt a second), and a GPU that reads 700 GB/s and computes 50 TFLOP/s.
inline constexpr MachineModel kCpuMachine{.step_ns = 25e6, .row_ns = 1.6e6, .seen_ns = 800};
inline constexpr MachineModel kGpuMachine{.step_ns = 3e6, .row_ns = 40e3, .seen_ns = 47};

struct SimulatedRequest {
  uint64_t arrival_ns = 0;
  uint32_t tenant = 0;
  RecordedRequest recorded;  // its timestamp does not count
  uint32_t max_tokens = 0;   // what the request asks for; the recording says where its answer ends
};

// Whether drafted tokens are those of the answer: none is drafted; all are; none is; three of four
// are.
enum class SimulatedDrafts { kNone, kRight, kWrong, kHalfRight };

struct SimulationOptions {
  MachineModel machine = kCpuMachine;
  SchedulerOptions scheduler;                       // on_plan is the simulation's own
  SimulatedDrafts drafts = SimulatedDrafts::kNone;  // by scheduler.speculate and draft_max
  uint32_t num_blocks = 0;
  uint32_t block_tokens = 16;
  std::string eviction = "lru";
  uint32_t max_queued = 0;  // requests that wait; more are refused. 0: no limit
  // 0: requests come at their times. Else each tenant has so many waiting or running, and the next
  // one comes when one of them has ended.
  uint32_t concurrency = 0;
  uint64_t until_ns = 0;  // 0: until all have ended
};

struct SimulatedAnswer {
  uint32_t tenant = 0, tokens = 0;
  bool refused = false;  // there was no room in the queue, or it can never fit
  uint64_t arrival_ns = 0, first_token_ns = 0, end_ns = 0;  // 0: not yet
  Receipt receipt;                                          // once it has ended
};

struct SimulationResult {
  std::vector<SimulatedAnswer> answers;  // of the requests that came, in their order
  std::vector<double> service_ns;        // [tenant]: its rows' share of each step's time
  std::vector<double> itl_ms;            // times between two tokens of an answer
  EngineStats stats;
  uint64_t virtual_ns = 0;
  uint64_t digest = 0;  // of the contents of all plans, in their order

  double mean_decode_batch() const;
  double tokens_per_s() const;      // of answers
  double recomputed_share() const;  // of all computed tokens
  uint64_t hit_tokens() const { return stats.reused_pool + stats.reused_partial; }
  uint64_t preemptions() const;
  uint64_t refusals() const;
  Percentiles ttft_ms() const;                 // of all tenants' answers
  Percentiles ttft_ms(uint32_t tenant) const;  // requests that never began count as endless
};

// Runs the requests, whose arrival_ns ascend. Owns the process's clock meanwhile. Aborts when the
// scheduler makes no progress.
SimulationResult Simulate(std::span<const SimulatedRequest> requests,
                          const SimulationOptions& options);

// `count` requests with lengths drawn from the recording, prompts that share nothing, and arrivals
// at `per_s` by a Poisson process (0: all at once). The same seed gives the same requests.
struct SampleOptions {
  uint32_t count = 0;
  double per_s = 0;
  uint32_t tenant = 0;
  uint32_t max_tokens = 0;
  uint64_t seed = 1;
};
std::vector<SimulatedRequest> SampleRequests(std::span<const RecordedRequest> recording,
                                             const SampleOptions& options);
// Returns both by time of arrival.
std::vector<SimulatedRequest> Merge(std::vector<SimulatedRequest> a,
                                    const std::vector<SimulatedRequest>& b);

}  // namespace kvasir
