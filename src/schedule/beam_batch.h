// BeamBatch: the beam searches that take part in a step, and what becomes of their sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "model/runner.h"
#include "sampling/beam_search.h"
#include "schedule/request.h"
#include "simd/target.h"

namespace kvasir {

// Each beam at hand is a sequence of its request. All beams of a request are computed in one step,
// and its search says which of them go on. Allocates nothing after construction while the number of
// beams does not grow. Engine thread only.
class BeamBatch {
 public:
  // The step of a request's search.
  struct Step {
    Request* request;
    uint32_t first_row, num_rows = 0;  // of the batch's logits
    bool finite = true;                // all its logits
  };

  // `logit_rows`: of a batch, at most. Needs memory for a model with an encoder alone. Runner and
  // cache must outlive this.
  BeamBatch(Runner& runner, KvCache& cache, Target target, uint32_t logit_rows);
  // Return the exact bytes that the constructor will allocate for rows, and those that it did
  // allocate.
  static uint64_t BytesFor(uint32_t vocab_size, uint32_t logit_rows, bool has_encoder);
  uint64_t bytes() const;

  // Begins the search of a request. `end_tokens`: the model's.
  static void BeginSearch(Request& request, std::span<const TokenId> end_tokens);

  void Clear() { steps_.clear(); }  // begins a batch
  // Adds the next beam of a request, whose logits are the batch's row `row`. REQUIRES: rows ascend,
  // and those of a request follow each other.
  void Add(Request& request, uint32_t row);
  // Advances the searches of the batch. `logits`: [rows][vocab].
  void Run(std::span<const float> logits);
  std::span<const Step> steps() const { return steps_; }

  // Makes the request's sequences those of the beams that go on. The first one that goes on from a
  // beam has its sequence; others become forks of that, in the memory of those that were dropped.
  Status Follow(Request& request);
  // Zeroes what earlier batches left in memory.
  void Zero();

 private:
  Runner& runner_;
  KvCache& cache_;
  const Target target_;
  std::vector<Step> steps_;
  std::vector<LogitRow> rows_;                   // [logit_rows], of a model with an encoder
  std::vector<std::unique_ptr<Sequence>> next_;  // of Follow; kept for its capacity
};

}  // namespace kvasir
