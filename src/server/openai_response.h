// The events of a generation as OpenAI's answers: one body, or server-sent events.
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/engine.h"
#include "server/errors.h"
#include "server/logprobs_json.h"
#include "server/openai_request.h"

namespace kvasir {

// One answer in the making, of one or more prompts with n choices each. Every stream event is
// `data: ` and an object that has `choices`; usage (when asked for) and the receipt ride on the
// last one before `data: [DONE]`, so the finish of the last choice waits for all requests' last
// events. One thread at a time.
class Answer {
 public:
  // `tokenizer` may be null and must outlive this. `id` is without its prefix.
  Answer(AnswerSpec spec, size_t num_prompts, std::string id, int64_t created,
         const Tokenizer* tokenizer);

  // Takes one event of a prompt's request. Returns what to stream now; "" when not streaming.
  std::string Take(size_t prompt, const Event& event);

  bool done() const { return open_requests_ == 0 || error_; }
  // The first error, after which nothing more is taken; the other requests should be cancelled.
  const std::optional<Error>& error() const { return error_; }
  // The whole answer, which refers to this. REQUIRES: done() without error(), not streaming.
  Parts Body() const;
  // What this holds until its end, but for what waits in a stream: grows with each event.
  uint64_t held_bytes() const { return held_bytes_; }
  // What it is expected to hold at most when `tokens` are generated in all: logprobs and ids
  // exactly, texts by an average of kTextBytes a token.
  uint64_t ExpectedBytes(uint64_t tokens) const;
  // What ends a stream that had begun when error() came.
  std::string ErrorEvent() const;
  bool streams() const { return spec_.stream; }
  // Whole once done() without error().
  const Receipt& receipt() const { return receipt_; }
  uint64_t completion_tokens() const { return completion_tokens_; }

 private:
  struct Choice {
    bool started = false;
    std::string text;
    uint64_t characters = 0;  // streaming: before the next token's text, its text_offset
    // Not streaming, and only if asked for. (Deques do not double as they grow.)
    std::deque<TokenId> ids;
    ScoredTokens scored;
    FinishReason finish = FinishReason::kNone;
    std::optional<std::string> stop_match;
  };

  std::string StreamEvent(uint32_t index, const Event& event);
  std::string LastEvents();
  void Collect(Choice* choice, const Event& event);
  std::string_view EchoOf(size_t index) const;
  nlohmann::json Envelope(bool chunk) const;
  Parts ChoiceText(size_t index) const;
  void AddTokenIds(const std::vector<TokenId>& ids, nlohmann::json* choice) const;
  nlohmann::json Usage() const;
  void AddReceipt(const Event& event);

  const AnswerSpec spec_;
  const std::string id_;
  const int64_t created_;
  const Tokenizer* const tokenizer_;
  std::vector<Choice> choices_;
  size_t open_requests_;
  size_t open_choices_;
  std::string held_;  // the last choice's finish event, until the receipt is whole
  Receipt receipt_;   // of all prompts
  uint64_t completion_tokens_ = 0;
  uint64_t held_bytes_;
  std::optional<Error> error_;
};

}  // namespace kvasir
