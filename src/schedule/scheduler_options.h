// SchedulerOptions: the choices that a Scheduler is made with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cache/identity.h"
#include "import/file_watch.h"
#include "kvasir/drafts.h"
#include "kvasir/engine_options.h"
#include "kvasir/types.h"
#include "schedule/scheduling_policy.h"
#include "simd/target.h"
#include "text/tokenizer.h"
#include "tier/tier.h"

namespace kvasir {

class KvCache;
class Runner;
struct Draft;
struct Request;
struct Sequence;

// RoPE longrope: sequences of more than `after_tokens` tokens are rotated by the long factors, and
// their KV has a separate Identity.
struct LongRope {
  uint32_t after_tokens;
  Identity identity;
};

// A second model, which drafts for the first. All must outlive the scheduler.
struct DraftModelParts {
  Runner* runner = nullptr;  // nullptr: there is none
  KvCache* cache = nullptr;
  Identity identity{};
  uint32_t ctx_size = 0, max_rows = 0;  // of a sequence; of a step
};

struct SchedulerOptions {
  CacheMode cache_mode = CacheMode::kPrefix;
  Schedule schedule = Schedule::kFair;
  Admission admission = Admission::kExpected;
  double kv_headroom = 0.05;    // share of the pool that admission leaves to those that run
  uint64_t target_step_ns = 0;  // View::target_step_ns
  uint32_t unknown_answer_tokens = 256;  // AnswerLengths
  uint32_t ctx_size = 0;                 // for statistics; 0: unknown
  // Exact tokens of a request whose retention is heavy, at most; 0: no request has it.
  uint32_t heavy_context = 0;
  uint32_t num_tenants = 256;  // whose answers' lengths are known apart
  uint32_t parallel = 8;
  uint32_t max_rows = 512;       // of a step: the runner's max_rows; at least parallel
  uint32_t logit_rows = 16;      // of one call to Runner::Logits; at least kMaxBeams
  Target target = BestTarget();  // of what looks at logits
  Tier* tier = nullptr;          // the cache's; nullptr: it has no tier
  // How long a flush or an erasure waits for the tier, which may never answer.
  uint64_t tier_answer_ns = 60'000'000'000;
  Identity identity{};
  // The Identity of KV that is computed with adapters of this digest. Empty: only that without.
  std::function<Identity(const Digest& adapters, bool is_long)> identify;
  std::optional<LongRope> long_rope;  // absent: the length does not change the rotation
  std::vector<TokenId> end_tokens;    // ascending
  const Tokenizer* tokenizer = nullptr;
  // Steps of the masks of formats, in each step: 0.8 to 1.5 ms. Between two steps that have nothing
  // else to do it is 5/2 of it, and a request may take 10 s beyond its part of the steps.
  uint64_t format_steps = 150'000;
  Speculate speculate = Speculate::kOff;
  uint32_t draft_max = 16;  // tokens of a draft, at most
  DraftModelParts draft_model;
  // Fills in the tokens of drafts instead of the cache's memory and predictions; for tests.
  std::function<void(const Request&, const Sequence&, Draft&)> drafts;
  FileWatch* files = nullptr;  // what the runner reads; must outlive the scheduler
  std::function<void(const View&, const StepPlan&)> on_plan;  // called after each decision

  // Returns whether a sequence of so many tokens is rotated by the long factors.
  bool IsLong(size_t num_tokens) const { return long_rope && num_tokens > long_rope->after_tokens; }
};

}  // namespace kvasir
