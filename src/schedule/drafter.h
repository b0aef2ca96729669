// Drafter: what may come next in an answer, from the cache's memory or the request's prediction.
#pragma once

#include <cstdint>

#include "cache/kv_cache.h"
#include "schedule/draft_pace.h"
#include "schedule/format_steps.h"
#include "schedule/request.h"
#include "schedule/scheduler_options.h"
#include "schedule/tenant_book.h"
#include "schedule/token_chooser.h"

namespace kvasir {

// Drafts the next tokens of sequences that decode. A draft never waits, and never needs more than
// its request has: it ends with the room for drafts, the answer, a token that ends the answer, one
// that its format forbids, and the length at which RoPE longrope changes. It is taken only from
// what the sequence's namespace has now, from its request's prediction, or, where the sequence
// publishes nothing, from its own last kOwnTokens tokens. Allocates nothing after construction,
// except for a format. Engine thread only.
class Drafter {
 public:
  static constexpr uint32_t kOwnTokens = 1024;

  // Keeps references: all must outlive it.
  Drafter(const SchedulerOptions& options, const KvCache& cache, const TokenChooser& chooser,
          TenantBook& tenants, FormatSteps& format_steps);

  // Returns how many tokens a draft of the request may ever have.
  uint32_t LongestDraft(const GenerateRequest& spec) const;
  // Returns how many tokens a draft may have now.
  uint32_t MostTokens(const Request& request, const Sequence& sequence) const;
  // Fills in sequence.draft; without tokens where there is nothing to draft. O(tokens of the
  // prediction + kOwnTokens).
  void Fill(const Request& request, Sequence& sequence) const;
  // Returns the chance that a token of the sequence's draft is right when those before it are.
  double Chance(const Request& request, const Sequence& sequence) const;
  // Returns the same of a draft that the draft model would make.
  double ModelChance(const Request& request) const;
  // Returns whether the request's guard lets it draft now.
  bool MayDraft(const Request& request) const;
  // Counts a draft that was checked, or one that was there and was not tried in so many steps.
  void Count(Request& request, const Draft& draft, uint32_t num_drafted, uint32_t num_accepted);
  void CountUntried(Request& request, const Draft& draft, uint32_t num_steps = 1) const;

 private:
  void FillFromMemory(const Request& request, const Sequence& sequence, uint32_t most,
                      Draft& draft) const;
  void FillFromPrediction(const Request& request, Sequence& sequence, uint32_t most,
                          Draft& draft) const;
  void Cut(const Request& request, const Sequence& sequence, Draft& draft) const;

  const SchedulerOptions& options_;
  const KvCache& cache_;
  const TokenChooser& chooser_;
  TenantBook& tenants_;
  FormatSteps& format_steps_;
};

}  // namespace kvasir
