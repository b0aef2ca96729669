// StepFigures: what a scheduler counts of its steps, queues and cache, and how fast steps are.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "base/clock.h"
#include "cache/kv_cache.h"
#include "kvasir/engine_event.h"
#include "kvasir/engine_stats.h"
#include "schedule/request_counts.h"
#include "schedule/request_queues.h"
#include "schedule/scheduling_policy.h"
#include "schedule/step_cost.h"

namespace kvasir {

// Owns the EngineStats. Counts that belong to one event are added where that happens, by stats();
// gauges, and what the cache counts, are filled in by Publish. Engine thread only.
class StepFigures {
 public:
  // `ctx_size`: the model's context, for the share of it that sequences take; 0: unknown.
  explicit StepFigures(uint32_t ctx_size) : ctx_size_(ctx_size) { stats_.tenants.resize(1); }

  EngineStats& stats() { return stats_; }
  const EngineStats& stats() const { return stats_; }
  uint64_t cache_ns() const { return stats_.cache_ns; }
  const StepCost& cost() const { return cost_; }
  // Returns the nanoseconds that a row of a prompt takes; 0: not known yet.
  double RowNs() const { return prefill_rows_ > 0 ? prefill_ns_ / prefill_rows_ : 0; }

  // Calls the cache, or the model, and counts the time inside.
  template <typename F>
  auto TimedCache(F&& call) {
    return Timed(stats_.cache_ns, std::forward<F>(call));
  }
  template <typename F>
  auto TimedModel(F&& call) {
    return Timed(times_.compute_ns, std::forward<F>(call));
  }
  void AddSampling(uint64_t ns) { times_.sample_ns += ns; }

  // Begins the times of a step that has rows.
  void BeginStep() { times_ = {.cache_before_ns = stats_.cache_ns}; }
  struct Step {
    StepWork work;
    // Rows that were computed, those of sources included; how many of them decode.
    uint32_t num_rows = 0, decode_rows = 0;  // drafted ones are in num_rows alone
    uint64_t ns = 0;
    uint64_t kv_read_bytes = 0, weight_read_bytes = 0;  // since the start
  };
  // Counts a step that ended now, and learns from its time.
  void AddStep(const Step& step);
  // Counts a token that came gap_ns after the one before it.
  void AddToken(uint64_t gap_ns);
  // Counts a choice that ended with so many tokens of prompt and answer; 0: it never ran.
  void AddChoice(size_t num_tokens, FinishReason reason) {
    CountChoice(static_cast<uint32_t>(num_tokens), reason, ctx_size_, stats_);
  }
  // Gives the owner of a cache a place in EngineStats::cache_owners, if fewer than `most` have one
  // or one of them has no blocks.
  void NoteOwner(const std::string& owner, uint32_t most);

  void set_on_stats(std::function<void(const EngineStats&)> on_stats) {
    on_stats_ = std::move(on_stats);
  }
  // Fills in the gauges and the cache's counters, and calls on_stats. `views`: those of the last
  // decision, which nothing has changed since.
  void Publish(const RequestQueues& requests, std::span<const RequestView> views, KvCache& cache);

 private:
  template <typename F>
  static auto Timed(uint64_t& sum_ns, F&& call) {
    struct Timer {
      uint64_t& sum_ns;
      uint64_t start_ns = MonotonicNs();
      ~Timer() { sum_ns += MonotonicNs() - start_ns; }
    } timer{sum_ns};
    return call();
  }
  void CountTenants(const RequestQueues& requests);
  void CountOwners(const RequestQueues& requests, KvCache& cache);
  void CountRequests(const RequestQueues& requests, std::span<const RequestView> views);
  void CountCache(const KvCache& cache);

  const uint32_t ctx_size_;
  std::function<void(const EngineStats&)> on_stats_;
  EngineStats stats_;
  StepCost cost_;
  StepTimes times_;
  RecentReads recent_reads_;
  uint64_t owners_counted_ns_ = 0;            // the last CountOwners
  double prefill_ns_ = 0, prefill_rows_ = 0;  // decaying sums: the measured speed of prompts
};

}  // namespace kvasir
