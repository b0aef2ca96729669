// HeadBatch: the rows of a step whose logits are wanted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/runner.h"
#include "schedule/request.h"

namespace kvasir {

struct Head {
  Request* request;
  Sequence* sequence;
  const float* hidden;  // [hidden_size], final
  uint32_t position;
  bool sample;           // the last row of what is known of the sequence: a token is drawn
  bool ends_prompt;      // then all choices that have no token yet are drawn
  bool drafted = false;  // a row of a sequence that checks a draft (DraftCheck)
};

// Computes logits in groups of logit_rows. The beams of a search are computed in one group. Its
// memory is allocated at construction. Engine thread only.
class HeadBatch {
 public:
  // `max_heads`: of a step. REQUIRES: logit_rows >= the beams of a search. The runner must outlive
  // this.
  HeadBatch(Runner& runner, uint32_t max_heads, uint32_t logit_rows);
  // Return the exact bytes of logits that the constructor will allocate, and did allocate.
  static uint64_t BytesFor(uint32_t vocab_size, uint32_t logit_rows) {
    return uint64_t{logit_rows} * vocab_size * sizeof(float);
  }
  uint64_t bytes() const { return logits_.capacity() * sizeof(float); }

  void Clear();  // begins a step
  void Add(const Head& head) { heads_.push_back(head); }
  // Computes the logits of the next group, and returns its heads; empty: there are no more. What it
  // returned before is overwritten.
  std::span<const Head> ComputeNext();
  // [heads of the group][vocab], and the row of one of these heads.
  std::span<const float> logits() const { return logits_; }
  std::span<const float> logits(size_t row) const {
    return logits().subspan(row * vocab_size_, vocab_size_);
  }
  // Zeroes what earlier steps left in memory.
  void Zero();

 private:
  size_t GroupEnd() const;

  Runner& runner_;
  const uint32_t vocab_size_, logit_rows_;
  std::vector<Head> heads_;
  std::vector<const float*> hidden_;  // of a group
  std::vector<float> logits_;         // [logit_rows_][vocab]
  size_t next_ = 0;                   // the next group's first head
  size_t num_used_ = 0;               // rows of logits_ that were used since Zero
};

}  // namespace kvasir
