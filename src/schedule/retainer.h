// Retainer: when sequences drop tokens that none of their later tokens sees, and which.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/kv_cache.h"
#include "schedule/block_sums.h"
#include "schedule/request.h"
#include "schedule/step_batch.h"
#include "schedule/step_figures.h"

namespace kvasir {

// Carries out the RetentionPolicy of requests that have one, and owns the memory of the weights
// that heavy decides by. Allocates nothing after construction but copies of what stays. Engine
// thread only.
class Retainer {
 public:
  // `heavy_context`: exact tokens of a request whose retention is heavy, at most; 0: no request has
  // it. `parallel`: sequences that run, at most. Cache and figures must outlive this.
  Retainer(KvCache& cache, StepFigures& figures, uint32_t heavy_context, uint32_t parallel);
  // Returns the bytes that the constructor did allocate for weights (BlockSums::BytesFor).
  uint64_t bytes() const { return sums_.bytes(); }

  // Drops what no later token of a request's sequences sees. Returns false where a sequence that
  // drops its first tokens has no room to copy what it keeps: until then it must not go on.
  bool DropTokens(Request& request);
  // Does so for one sequence. `sequences`: that the request has or will have, if this is the only
  // one with blocks; else 0.
  bool DropTokens(const Request& request, Sequence& sequence, uint32_t sequences);
  // Gives a sequence memory for the weights of rows that count at its next decision.
  void TakeSums(const StepBatch::Rows& rows);

  // Counts what a choice that ends has dropped. REQUIRES: it has its KV, or was preempted.
  void Note(Request& request, const Sequence& sequence);
  // Writes into the receipt what the longest choice has dropped.
  static void FillReceipt(Request& request);

 private:
  bool Decide(const RetentionPolicy& policy, Sequence& sequence);

  KvCache& cache_;
  StepFigures& figures_;
  BlockSums sums_;
  std::vector<uint32_t> kept_blocks_;                    // of DropTokens; kept for its capacity
  std::vector<RetentionPolicy::HeldBlock> held_blocks_;  // of Decide; the same
};

}  // namespace kvasir
