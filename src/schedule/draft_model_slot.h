// DraftModel::Slot: what a draft model has of a sequence.
#pragma once

#include "schedule/draft_model.h"

namespace kvasir {

// The KV of a sequence, and its tokens with those that are drafted. States: free (no request);
// waits (no KV: reading its prompt does not pay); reads (kv lacks more than kMostBehind tokens);
// drafts.
struct DraftModel::Slot {
  std::optional<RequestId> id;  // absent: free
  Request* request = nullptr;   // while a Fill or Sweep runs
  Sequence* sequence = nullptr;
  uint32_t choice = 0;
  bool has_kv = false;
  uint32_t ask_at = 0;  // answer tokens
  KvSequence kv;
  Sequence shadow;            // its tokens, and its place in the format
  uint32_t num_known = 0;     // of shadow.tokens: not drafted
  uint32_t most = 0;          // tokens of its draft
  double chance = 0;          // that a drafted token is right
  Draft other;                // which memory or a prediction has, unless the model drafts
  double other_saved_ns = 0;  // by it, for each token of the answer
  bool reads = false;         // in this Fill
  bool unreadable = false;    // a token is beyond the model's vocabulary
  bool goes_on = false;       // its draft may get longer in this Fill
  bool is_behind() const { return has_kv && num_known - kv.num_committed() > kMostBehind; }
  void DropKv() {
    kv = KvSequence();
    has_kv = false;
  }
};

}  // namespace kvasir
