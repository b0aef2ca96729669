// What the scheduler counts of steps and requests, apart from what the cache counts.
#pragma once

#include <array>
#include <cstdint>

#include "kvasir/engine_event.h"
#include "kvasir/engine_stats.h"
#include "schedule/request.h"

namespace kvasir {

// Times of the current step, for the parts of the time between two tokens.
struct StepTimes {
  uint64_t cache_before_ns = 0;  // EngineStats::cache_ns when it began
  uint64_t compute_ns = 0, sample_ns = 0;
};

// What the steps of the last minute read, in a ring of seconds. Allocates nothing. One thread.
class RecentReads {
 public:
  // Adds a step that ended now. `read_bytes`: weights and KV read since the start.
  void Add(uint64_t now_ns, uint64_t step_ns, uint64_t read_bytes);
  void Fill(RequestStats& stats) const;

 private:
  static constexpr uint64_t kSeconds = 60;
  struct Second {
    uint64_t number = 0, read_bytes = 0, step_ns = 0;
  };
  std::array<Second, kSeconds> ring_{};
  uint64_t read_bytes_ = 0, last_ns_ = 0;
};

// Counts a step of so many rows that took step_ns; predicted_ns: before it ran, 0 where nothing is
// known.
void CountStepRows(uint32_t num_rows, uint64_t step_ns, double predicted_ns, EngineStats& stats);
// Counts a token that came gap_ns after the one before it: what of that passed in this step's
// parts.
void CountTokenParts(uint64_t gap_ns, const StepTimes& times, EngineStats& stats);
// Counts a choice that ended. num_tokens: prompt and answer; 0: it never ran.
void CountChoice(uint32_t num_tokens, FinishReason reason, uint32_t ctx_size, EngineStats& stats);
// Counts a request that ended now; its receipt is complete.
void CountRequest(const Request& request, FinishReason reason, uint64_t now_ns, EngineStats& stats);
// Fills in the receipt's parts of ttft_ms.
void FillFirstTokenParts(const FirstTokenTime& time, Receipt& receipt);

}  // namespace kvasir
