// Sequence: one choice of a request while it runs. Request: what was asked, its sequences, its
// events.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "chat/answer_parser.h"
#include "grammar/matcher.h"
#include "kvasir/engine.h"
#include "sampling/beam_search.h"
#include "sampling/indent_limit.h"
#include "schedule/answer_formats.h"
#include "schedule/first_token_time.h"
#include "schedule/format_choice.h"
#include "schedule/load_pace.h"
#include "schedule/stop_matcher.h"
#include "text/tokenizer.h"

namespace kvasir {

// Tokens, BlockTable and text state of one generation. Of `tokens`, the first kv.num_committed()
// are computed; the rest waits for the next steps. States: computing its prompt (tokens.size() ==
// the prompt's), generating, done (kv is empty). Engine thread only.
struct Sequence {
  uint32_t choice = 0;
  std::vector<TokenId> tokens;  // prompt and answer; reserved to its largest size
  KvSequence kv;
  bool done = false;
  uint32_t num_computed = 0;  // when it was preempted: tokens that had been computed
  bool long_rope = false;     // rotated by the long factors of RoPE longrope
  uint64_t token_ns = 0;      // when its last token was sampled; 0: no token yet
  uint32_t next_logits = 0;   // next position for on_logits
  std::optional<TextStream> text;
  std::optional<Matcher> format;  // where its answer stands in the request's format
  // While its next token is drawn; from one step to the next while it waits for that: until the
  // format's legal tokens are known it takes no part in steps.
  std::unique_ptr<FormatChoice> format_choice;
  std::optional<AnswerParser> thought;  // while an answer may get max_thought_tokens
  uint32_t thought_tokens = 0;
  std::optional<StopMatcher> stop;
  std::optional<IndentLimit> indent;
  bool has_line_end = false;  // in its text

  bool waits_for_format() const { return format_choice && format_choice->waits(); }
  uint32_t num_pending() const { return static_cast<uint32_t>(tokens.size()) - kv.num_committed(); }
};

// What a running request's first choice gets from the tier.
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

// Sequences that a request has at most, which all run at once.
inline uint32_t WidthOf(const GenerateRequest& spec) {
  return spec.beams ? spec.beams->beams : spec.n;
}

// States: waiting (no sequence), running, preempted (its sequences have no KV, but keep tokens and
// text), done (every choice has its finish_reason, and the request holds no block). Submission sets
// what does not change later; only the engine thread uses the rest.
struct Request {
  RequestId id{};
  GenerateRequest spec;
  CompiledFormat format;             // of spec
  const TokenTrie* words = nullptr;  // of the engine, for SamplingParams::infill
  EventSink sink;
  uint64_t seed = 0;
  uint32_t max_tokens = 0;  // clipped to what fits
  KvDemand demand{};        // of its choices; the last token of each needs no KV
  uint64_t submitted_ns = 0;
  uint64_t deadline_ns = std::numeric_limits<uint64_t>::max();  // MonotonicNs; the largest: none
  uint64_t bytes = 0;        // of spec, as submission counted them
  uint32_t seen_tokens = 0;  // of the prompt, probably in the cache (SeenPrompts)

  Reservation reservation;       // while it runs
  uint32_t reserved_tokens = 0;  // of each sequence: how far the reservation reaches
  uint32_t tenant = 0;           // as the scheduler counts them
  bool preempted = false;
  PreemptCause cause{};         // of the last preemption
  AccountId account = kNobody;  // of its blocks, since it came or was matched last
  bool is_starved = false;      // its reservation ends here and could not grow
  bool has_no_room = false;     // waiting: Reserve failed, and no block was released since
  bool over_quota = false;      // then the reason was its account's maximum
  bool is_owed = false;         // waiting: its account's guarantee covers what it needs
  uint32_t overtaken = 0;       // waiting: later ones that were admitted before it
  // Waiting: tokens of the prompt that were resident when the cache had committed and evicted
  // `probed_at` blocks.
  uint32_t resident_tokens = 0;
  uint64_t probed_at = std::numeric_limits<uint64_t>::max();
  // Waiting: a request that computes the first `leader_tokens` of this prompt right now.
  RequestId leader{};
  uint32_t leader_tokens = 0;
  LoadState load;
  bool skips_tier = false;              // a load of it failed
  std::optional<MissReason> tier_miss;  // why, for the receipt
  bool was_resumed = false;             // since it was admitted last: it goes on after a preemption
  uint32_t recomputed_last = 0;         // of Receipt::recomputed: since it was resumed last
  uint32_t tokens_at_resume = 0;        // completion_tokens
  bool past_deadline = false;           // and so ended
  bool is_erased = false;               // its owner's cache was erased since it came
  bool end_reported = false;            // Scheduler::set_on_end
  // One until the prompt is computed, then those of the choices, or of the beams at hand.
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::unique_ptr<BeamSearch> search;  // of spec.beams
  // Of beams that are not at hand, since too few tokens may follow: without tokens, but with their
  // part of the reservation.
  std::vector<std::unique_ptr<Sequence>> unused_beams;
  std::vector<float> cursor_hidden;  // final hidden state of a prompt that a Cursor answers
  bool prompt_done = false;
  FirstTokenTime first_token_time;
  std::unique_ptr<RequestTrace> trace;  // absent: nobody asked for it
  uint64_t starved_since_ns = 0;        // traced: is_starved since then
  uint64_t admitted_ns = 0, first_token_ns = 0, last_token_ns = 0;
  uint32_t longest_answer = 0;     // tokens
  uint32_t completion_tokens = 0;  // of all choices
  uint32_t prefilled_tokens = 0;   // rows of the prompt, those that were computed again too
  uint64_t format_steps = 0;       // of its format's walks, between steps
  Receipt receipt;

  std::vector<Event> events;      // [n]: for the sinks after this step
  std::vector<bool> has_event;    // [n]
  std::vector<bool> choice_done;  // [n]
  uint32_t num_done = 0;

  uint32_t prompt_tokens() const { return static_cast<uint32_t>(spec.prompt.size()); }
  uint32_t new_tokens() const { return prompt_tokens() - seen_tokens; }
  // Of the source, that an encoder has to read unless the cache has them.
  uint32_t new_source_tokens() const {
    const Sequence* sequence = first_live();
    const bool is_read = sequence != nullptr && sequence->kv.has_source();
    return is_read ? 0 : static_cast<uint32_t>(spec.source.size());
  }
  const std::string& cache_owner() const {
    return spec.cache_owner ? *spec.cache_owner : spec.tenant;
  }
  bool SharesCacheWith(const Request& other) const {
    return cache_owner() == other.cache_owner() && spec.cache_salt == other.spec.cache_salt;
  }
  // What came before an erase must not be found after it, even if it is matched again.
  bool shares() const { return spec.reuse != Reuse::kNothing && !is_erased; }
  bool done() const { return num_done == spec.n; }
  // Tokens of the shortest choice that is not done.
  size_t shortest() const {
    size_t tokens = std::numeric_limits<size_t>::max();
    for (const auto& sequence : sequences) {
      if (!sequence->done) tokens = std::min(tokens, sequence->tokens.size());
    }
    return tokens;
  }
  // Sequences that it has at most, and still may have.
  uint32_t width() const { return WidthOf(spec); }
  uint32_t num_live() const {
    if (spec.beams) return done() ? 0 : spec.beams->beams;
    return spec.n - num_done;
  }
  // The first one that is not done; nullptr before the request ran.
  Sequence* first_live() const {
    for (const auto& sequence : sequences) {
      if (!sequence->done) return sequence.get();
    }
    return nullptr;
  }
};

// The event of a choice in this step; empty if nothing happened to the choice yet.
Event& EventOf(Request& request, uint32_t choice);

// What a sampled token does: it goes into the text, or it ends the answer (end of sequence,
// stop_ids).
enum class TokenRole { kText, kEnd };

// Adds event.tokens.back(), just sampled, to the sequence and, unless it ends the answer, to its
// text. Returns why the choice is done, or kNone when it goes on.
FinishReason AppendToken(Request& request, Sequence& sequence, TokenRole role, Event& event);

TextStream TextStreamFor(const Tokenizer& tokenizer, const GenerateRequest& spec);

// Adds a sequence for the request's next choice, or for a beam of its search: with the prompt's
// tokens, which `kv` holds or will hold. `tokenizer`: nullptr: the answer has no text.
Sequence& AddSequence(Request& request, KvSequence kv, const Tokenizer* tokenizer);

// Adds all tokens of an answer that came at once, and their text.
void AddAnswer(std::span<const TokenId> tokens, bool ended, const Tokenizer* tokenizer,
               const GenerateRequest& spec, Event& event);

// Ends the choice. Adds the text that was held back to its event, unless a stop string cuts it.
void FinishChoice(Request& request, uint32_t choice, FinishReason reason);

}  // namespace kvasir
