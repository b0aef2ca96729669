// Request: what was asked, and what the engine knows of it until its last event.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "kvasir/engine.h"
#include "policy/retention_policy.h"
#include "sampling/beam_search.h"
#include "schedule/adapter_set.h"
#include "schedule/answer_events.h"
#include "schedule/answer_formats.h"
#include "schedule/draft_pace.h"
#include "schedule/first_token_time.h"
#include "schedule/load_pace.h"
#include "schedule/mean_rows.h"
#include "schedule/sequence.h"
#include "schedule/span_state.h"

namespace kvasir {

// Returns how many sequences a request has at most, which all run at once.
inline uint32_t WidthOf(const GenerateRequest& spec) {
  return spec.beams ? spec.beams->beams : spec.n;
}

// When a request did what. MonotonicNs; 0: not yet.
struct RequestTimes {
  uint64_t submitted_ns = 0, admitted_ns = 0, first_token_ns = 0, last_token_ns = 0;
  uint64_t deadline_ns = std::numeric_limits<uint64_t>::max();  // the largest: none
  bool past_deadline = false;                                   // it passed, and ended the request
  FirstTokenTime parts;                                         // of the time to the first token
};

// What a store far away is asked for a request that waits (TierLooks).
struct LookState {
  // When a thread of the tier answered, MonotonicNs; 0: not yet; nullptr: not asked.
  std::shared_ptr<std::atomic<uint64_t>> answered_ns;
  uint64_t since_ns = 0, until_ns = 0;  // MonotonicNs: how long the request is held, at most

  // Returns how long it was held for the answer by `now_ns`: not what it waited for others.
  uint64_t HeldNs(uint64_t now_ns) const {
    const uint64_t answer_ns = answered_ns->load(std::memory_order_acquire);
    const uint64_t end_ns = std::min(now_ns, until_ns);
    return (answer_ns != 0 ? std::clamp(answer_ns, since_ns, end_ns) : end_ns) - since_ns;
  }
};

// What admission knows of a request that waits.
struct WaitState {
  uint32_t seen_tokens = 0;  // of the prompt, probably in the cache (SeenPrompts)
  bool has_no_room = false;  // Reserve failed, and no block was released since
  bool is_owed = false;      // its account's guarantee covers what it needs
  uint32_t overtaken = 0;    // later requests that were admitted before it
  // Tokens of the prompt that were resident when the cache had committed and evicted `probed_at`
  // blocks.
  uint32_t resident_tokens = 0;
  uint64_t probed_at = std::numeric_limits<uint64_t>::max();
  // A request that computes the first `leader_tokens` of this prompt right now.
  RequestId leader{};
  uint32_t leader_tokens = 0;
  LookState look;
  uint64_t looked_ns = 0;               // how long the request was held for it
  bool skips_tier = false;              // a load of it failed
  std::optional<MissReason> tier_miss;  // why, for the receipt
};

// What a request needs of the pool, which submission finds out, and what it holds.
struct RoomState {
  KvDemand demand{};             // of its choices; the last token of each needs no KV
  Reservation reservation;       // while it runs
  uint32_t reserved_tokens = 0;  // of each sequence: how far the reservation reaches
  uint32_t draft_tokens = 0;     // of each sequence: how far its drafts may reach in this step
  AccountId account = kNobody;   // of its blocks, since it came or was matched last
  bool is_starved = false;       // its reservation ends here and could not grow
  bool over_quota = false;       // it is starved or has no room because of its account's maximum
};

// How a request goes on after a preemption.
struct ResumeState {
  bool preempted = false;
  PreemptCause cause{};           // of the last preemption
  bool was_resumed = false;       // since it was admitted last: it goes on after a preemption
  uint32_t recomputed_last = 0;   // of Receipt::recomputed: since it was resumed last
  uint32_t tokens_at_resume = 0;  // AnswerState::completion_tokens
};

// What a running request's first choice, or the span that it reads, gets from the tier (TierLoads).
struct LoadState {
  KvLoad load;
  LoadPace pace;
  bool waits = false;       // its next block is on its way, and it has no rows
  bool is_late = false;     // it does not wait any more: it computes while blocks come
  uint32_t first_read = 0;  // late: the first block that is still wanted from the tier
  // Why some of the offer is computed, and from which token on.
  std::optional<MissReason> miss;
  uint32_t miss_at = 0;
};

// How far a request's answer is.
struct AnswerState {
  // One until the prompt is computed, then those of the choices, or of the beams at hand.
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::unique_ptr<BeamSearch> search;  // of GenerateRequest::beams
  // Sequences of beams that are not at hand, since too few tokens may follow: without tokens, but
  // with their part of the reservation.
  std::vector<std::unique_ptr<Sequence>> unused_beams;
  std::vector<float> cursor_hidden;  // final hidden state of a prompt that a Cursor answers
  MeanRows mean_rows;                // of the prompt, for Pooling::kMean
  bool prompt_done = false;
  uint32_t longest = 0;            // tokens of the longest choice
  uint32_t completion_tokens = 0;  // of all choices
  uint32_t prefilled_tokens = 0;   // rows of the prompt, those that were computed again too
  uint32_t most_computed = 0;      // tokens of the choice with most of them, at its end
  uint32_t most_dropped = 0, decisions = 0;  // of that choice
  uint64_t format_steps = 0;                 // of its format's walks, between steps
  DraftPace pace;

  // Returns the first sequence that is not done; nullptr before the request ran.
  Sequence* first_live() const {
    for (const auto& sequence : sequences) {
      if (!sequence->done) return sequence.get();
    }
    return nullptr;
  }
  // Returns the tokens of the shortest choice that is not done.
  size_t shortest() const {
    size_t tokens = std::numeric_limits<size_t>::max();
    for (const auto& sequence : sequences) {
      if (!sequence->done) tokens = std::min(tokens, sequence->tokens.size());
    }
    return tokens;
  }
};

// The trace of a request that has one (request_tracing.h).
struct TraceState {
  std::unique_ptr<RequestTrace> trace;  // absent: it was not asked for
  uint64_t starved_since_ns = 0;        // RoomState::is_starved since then; 0: it is not
};

// States: waiting (no sequence), running, preempted (its sequences have no KV, but keep tokens and
// text), done (every choice has its finish_reason, and the request holds no block). Submission sets
// what stands before `times`, and what does not change later in the parts after it; only the engine
// thread uses the rest.
struct Request {
  RequestId id{};
  GenerateRequest spec;
  CompiledFormat format;  // of spec
  AdapterSeat adapters;   // of spec
  uint64_t seed = 0;
  uint32_t max_tokens = 0;                   // clipped to what fits
  uint64_t bytes = 0;                        // of spec, as submission counted them
  std::optional<RetentionPolicy> retention;  // absent: its sequences keep all

  RequestTimes times;
  WaitState wait;
  TraceState tracing;
  uint32_t tenant = 0;  // TenantBook
  RoomState room;
  ResumeState resume;
  LoadState load;
  AnswerState answer;
  SpanState spans;
  AnswerEvents events;
  Receipt receipt;
  bool is_erased = false;  // its owner's cache was erased since it came

  uint32_t prompt_tokens() const { return static_cast<uint32_t>(spec.prompt.size()); }
  uint32_t new_tokens() const { return prompt_tokens() - wait.seen_tokens; }
  // Returns the tokens of the source that an encoder has to read, unless the cache has them.
  uint32_t new_source_tokens() const {
    const Sequence* sequence = answer.first_live();
    const bool is_read = sequence != nullptr && sequence->kv.has_source();
    return is_read ? 0 : static_cast<uint32_t>(spec.source.size());
  }
  const std::string& cache_owner() const {
    return spec.cache_owner ? *spec.cache_owner : spec.tenant;
  }
  Digest adapter_digest() const { return adapters.get() ? adapters.get()->digest : Digest{}; }
  bool SharesCacheWith(const Request& other) const {
    return cache_owner() == other.cache_owner() && spec.cache_salt == other.spec.cache_salt &&
           adapter_digest() == other.adapter_digest();
  }
  // Returns the sequence that a load is for: the part that is read, else the first choice.
  Sequence& loading() {
    Sequence* const part = spans.reading();
    return part != nullptr ? *part : *answer.first_live();
  }
  // Returns the first position whose token does not see all before it: nothing of it is found by
  // others from there on.
  uint32_t exact_end() const {
    if (spans.plan) return spans.plan->inexact_from();
    return retention ? retention->inexact_from() : std::numeric_limits<uint32_t>::max();
  }
  // Returns the first position whose token it computes itself, whatever the cache has.
  uint32_t match_end() const {
    if (spans.plan) return spans.plan->inexact_from();
    return retention ? retention->match_end() : std::numeric_limits<uint32_t>::max();
  }
  // Returns the beginning of some tokens of it that the cache may have for it.
  std::span<const TokenId> Exact(std::span<const TokenId> tokens) const {
    return tokens.first(std::min<size_t>(tokens.size(), match_end()));
  }
  // Returns whether it uses and fills the cache. What came before an erase must not be found after
  // it, even if it is matched again.
  bool shares() const { return spec.reuse != Reuse::kNothing && !is_erased; }
  bool done() const { return events.num_done() == spec.n; }
  // Return how many sequences it has at most, and still may have.
  uint32_t width() const { return WidthOf(spec); }
  uint32_t num_live() const {
    if (spec.beams) return done() ? 0 : spec.beams->beams;
    return spec.n - events.num_done();
  }
};

}  // namespace kvasir
