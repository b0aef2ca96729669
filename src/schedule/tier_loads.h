// TierLoads: what running requests get from a tier instead of computing it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "cache/kv_cache.h"
#include "model/runner.h"
#include "schedule/load_pace.h"
#include "schedule/request.h"
#include "schedule/request_queues.h"
#include "schedule/step_figures.h"
#include "tier/tier.h"

namespace kvasir {

// A load is waited for while it is quicker than computing. Else it is late: its request computes
// what it needs next, and blocks that come in time are taken. Where layers have windows, half a
// load is of no use: then the request is matched again, without the tier. Engine thread only.
class TierLoads {
 public:
  // `tier`: the cache's; nullptr: it has none, and nothing is ever loaded. `max_rows`: of a step.
  // All must outlive this.
  TierLoads(Runner& runner, KvCache& cache, Tier* tier, StepFigures& figures, uint32_t max_rows);

  // Begins to load what the match of a request was offered, whose sequence was just fetched.
  void Start(Request& request, KvLoad load, uint32_t num_offered);
  // Takes what has come for each request that loads, and decides which of them wait.
  void Continue(RequestQueues& requests);
  // Returns how many of `pending` rows a sequence may compute before it needs a block of its load.
  uint32_t RowsBefore(const Request& request, const Sequence& sequence, uint32_t pending) const;
  // Ends the request's load, if it has one: what the receipt says of the prompt is final.
  void End(Request& request);
  // Hands blocks over to the tier: for a few milliseconds while something runs, else all for which
  // there are buffers.
  void Seal(bool runs);

 private:
  bool ContinueOne(Request& request, uint64_t end_ns);
  void Restart(RequestQueues& requests, size_t running_index);
  void ReadAhead(Request& request);
  static void SetMiss(Request& request, MissReason reason);
  void EnterState(Request& request, uint64_t now_ns);
  uint64_t LeftBytes(const LoadState& state) const;
  void LearnSpeed(TierKind kind);
  std::optional<double> NsPerByte(const KvLoad& load) const;
  uint32_t LeftTokens(Request& request) const;

  KvCache& cache_;
  Tier* const tier_;
  StepFigures& figures_;
  const uint32_t max_rows_;
  const KvCache::ForEach for_each_;              // on the runner's threads
  std::array<LoadSpeed, kNumTierKinds> speeds_;  // [TierKind]
};

}  // namespace kvasir
