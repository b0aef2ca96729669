// StepBatch: the rows of a step, and what the model computes of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "block/kv_layout.h"
#include "model/runner.h"
#include "schedule/request.h"
#include "schedule/scheduling_policy.h"
#include "schedule/step_cost.h"

namespace kvasir {

// A step first reads the sources that its rows need, then computes the rows. Requests that end
// meanwhile keep their rows in rows() and are left out of what follows. Allocates nothing after
// construction. Engine thread only.
class StepBatch {
 public:
  // The rows of one sequence; num_rows is 0 where a Cursor answers, or only the source is read.
  struct Rows {
    Request* request;
    Sequence* sequence;
    uint32_t first_row, num_rows;
    uint32_t position;         // of the first row
    uint32_t source_rows;      // tokens of its source, if that is read before; else 0
    bool decodes;              // its only token was just sampled
    uint32_t num_drafted = 0;  // of num_rows: the last ones, of the sequence's draft
    bool is_span = false;      // of the part of its prompt that the request reads
  };

  // `max_rows`: of a step; `parallel`: sequences that have rows, at most. The runner must outlive
  // this.
  StepBatch(Runner& runner, const KvLayout& layout, uint32_t max_rows, uint32_t parallel);

  void Clear();  // begins a step
  // Adds rows; each of them reads kv_bytes of KV.
  void Add(const Rows& rows, double kv_bytes);
  bool empty() const { return rows_.empty(); }
  std::span<Rows> rows() { return rows_; }
  const StepWork& work() const { return work_; }
  uint32_t decode_rows() const { return work_.decode_rows; }
  // Returns how many rows the model computed, those of sources included.
  uint32_t num_computed() const {
    return static_cast<uint32_t>(tokens_.size() + source_tokens_.size());
  }

  // Adds the source of these rows, for which the cache has made room, to those that Encode reads.
  void AddSource(const Rows& rows);
  // Returns the rows whose sources Encode reads, in the order of Runner::source_finite.
  std::span<const Rows* const> source_owners() const { return source_owners_; }
  Status Encode() { return runner_.Encode(sources_, source_tokens_); }
  bool source_finite(uint32_t source) const { return runner_.source_finite(source); }

  // Adds rows, for which the cache has made room, to those that Compute computes, `shift` positions
  // further than they are (Fault::kWrongPosition and kStaleResume; else 0).
  void AddRows(Rows& rows, uint32_t shift);
  bool has_rows() const { return !sequences_.empty(); }
  Status Compute() { return runner_.Step(sequences_, tokens_); }
  // Return what Compute made of a row: its final hidden state [hidden_size], and whether its
  // activations are finite; else its KV must not be used.
  std::span<const float> hidden(uint32_t row) const { return runner_.hidden(row); }
  bool finite(uint32_t row) const { return runner_.finite(row); }
  // Return what the model has read since the start (Runner).
  uint64_t kv_read_bytes() const { return runner_.kv_read_bytes(); }
  uint64_t weight_read_bytes() const { return runner_.weight_read_bytes(); }

  // Zeroes what earlier steps left in memory, the runner's too.
  void Zero();

 private:
  void Bound(const Rows& rows, const RetentionPolicy& policy, StepSequence* step);
  void BoundHeavy(const Rows& rows, const RetentionPolicy& policy, StepSequence* step);

  Runner& runner_;
  std::vector<Rows> rows_;
  std::vector<StepSequence> sequences_;
  std::vector<StepRun> runs_;    // of sequences_
  std::vector<TokenId> tokens_;  // [max_rows]: of sequences_
  std::vector<StepSource> sources_;
  std::vector<TokenId> source_tokens_;      // of sources_
  std::vector<const Rows*> source_owners_;  // [sources_]
  StepWork work_;
};

}  // namespace kvasir
