// SpanReader: when the parts of a prompt with spans are read, and what is counted of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/kv_cache.h"
#include "schedule/request.h"
#include "schedule/request_matcher.h"
#include "schedule/request_queues.h"
#include "schedule/step_batch.h"
#include "schedule/step_figures.h"
#include "schedule/tier_loads.h"

namespace kvasir {

// Carries out the SpanPlan of requests that have one; for the others its functions do nothing. A
// part is reserved with its request, then matched, loaded or computed when the request's first
// sequence has its exact tokens, and read in by that. Engine thread only.
class SpanReader {
 public:
  // Keeps references: all must outlive it.
  SpanReader(KvCache& cache, const RequestQueues& requests, RequestMatcher& matcher,
             TierLoads& loads, StepFigures& figures)
      : cache_(cache), requests_(requests), matcher_(matcher), loads_(loads), figures_(figures) {}

  // Makes the parts of a request that is about to start, and reserves what they need. Where its
  // head is here, what is here of the parts stays. `match`: of its first sequence. kExhausted;
  // after that it is not tried again before its parts may have all that they need, or there is a
  // reason to look for them anew (Retry).
  Result<std::vector<std::unique_ptr<SpanPart>>> Reserve(Request& request,
                                                         const MatchResult& match);
  // Makes requests that wait look for their spans again: there is more of them, or others pin them.
  void Retry();
  // Goes on with the parts of a request whose first sequence has its exact tokens: one after the
  // other is begun and computed; then the sequence passes over what it reads of them. Returns false
  // where blocks are missing: until then the request must not go on.
  bool Read(Request& request);
  // Commits the rows of a part that a step computed.
  void CommitRows(const StepBatch::Rows& rows);
  // Gives the parts of a request that is preempted back; what they have can be found again.
  void Stop(Request& request);

  // Counts the tokens of a choice that ends and did not see all before them as it stands.
  void Note(Request& request, const Sequence& sequence);
  // Writes into the receipt what became of the spans, as far as the request came.
  void FillReceipt(Request& request);
  // Returns how often spans were looked for in the cache; tests bound it.
  uint64_t num_matches() const { return num_matches_; }

 private:
  Status ReservePart(Request& request, SpanPart& part, const SpanPlan::Part& plan, bool has_head,
                     std::vector<MatchResult>& unused, uint32_t* needed);
  void BeginPart(Request& request, const Sequence& first);
  bool MatchPart(Request& request, SpanPart& part, uint32_t least);
  void EndPart(Request& request);
  void CountPart(Request& request, const SpanPlan::Part& plan, const SpanPart& part);

  KvCache& cache_;
  const RequestQueues& requests_;
  RequestMatcher& matcher_;
  TierLoads& loads_;
  StepFigures& figures_;
  uint64_t num_matches_ = 0;
};

}  // namespace kvasir
