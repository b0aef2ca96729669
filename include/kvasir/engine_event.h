// Event: what an Engine reports of a request, as it goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/receipt.h"
#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir {

struct TokenLogprob {
  TokenId id;
  float logprob;  // natural log, of the model's distribution before sampling parameters
};

struct GeneratedToken {
  TokenId id;
  // The text that is certain once this token is known; may be empty. All pieces joined are the
  // whole decoded answer; all Event.text joined are the same, except that they end before a stop
  // string. The text of a token that ended the answer (end of sequence, stop_ids) is empty.
  std::string text;
  float logprob = 0;              // only if logprobs were asked for
  std::vector<TokenLogprob> top;  // best first
};

// How far a request is: GenerateRequest::reports_progress.
struct Progress {
  uint32_t total = 0;      // tokens of the prompt
  uint32_t processed = 0;  // of those, with KV
  uint32_t cached = 0;     // of those: not computed
  double prompt_ms = 0;    // from admission until now or, later, to the first token
  double answer_ms = 0;    // from the first token until now
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };
const char* ToString(FinishReason reason);  // "stop", "length", ...

// Progress of a request. Exactly one event of a request has `last` set: the final one. Each choice
// has exactly one event with a finish_reason, at or before the final one.
struct Event {
  uint32_t choice = 0;
  std::vector<GeneratedToken> tokens;
  // Text to append. Stop strings never appear in it: text that may begin one waits.
  std::string text;
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<std::string> stop_match;  // the stop string that ended it, or "deadline"
  // GenerateRequest::beams: of the hypothesis; its length counts all tokens after the first one of
  // the prompt. Absent: the search found fewer, and this choice has no tokens.
  std::optional<float> score;
  std::optional<Error> error;  // with kError
  bool last = false;
  Receipt receipt;                 // complete only when last
  uint32_t completion_tokens = 0;  // of all choices, when last
  // Tokens of the prompt, when last: those that steps computed, once each. At most
  // receipt.computed, which counts those of a prompt that never ran too.
  uint32_t prefilled_tokens = 0;
  std::optional<Progress> progress;
  std::vector<float> embedding;  // [hidden_size], when last: GenerateRequest::embeds
  // GenerateRequest::scores_prompt: the next tokens of the prompt, without text.
  std::vector<GeneratedToken> scored;
};

// Called on the engine's thread, like on_logits. A sink must not block or wait for that thread:
// Drain, Erase without a callback, CheckInvariants and the engine's destructor abort when a sink
// calls them, and Generate never returns. A sink may call Submit, Cancel, Stats, Forget and Erase
// with a callback. A sink that has no memory for an event may throw: the engine sends the event
// again soon, joined with what has come since.
using EventSink = std::function<void(const Event&)>;
// A sink of several requests; `index` says which of them the event is about.
using IndexedSink = std::function<void(size_t index, const Event& event)>;

}  // namespace kvasir
