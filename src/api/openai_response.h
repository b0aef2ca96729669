// The events of a generation as OpenAI's answers: one body, or server-sent events.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "api/answer_pieces.h"
#include "api/logprobs_json.h"
#include "api/openai_request.h"
#include "api/timings.h"
#include "http/errors.h"
#include "kvasir/engine.h"

namespace kvasir {

// Keeps an answer somewhere else too, while it comes. Its destructor drops what was not finished.
class AnswerKeeper {
 public:
  virtual ~AnswerKeeper() = default;
  virtual void Take(const Event& event) = 0;  // every event without an error
  // After the last event. An error is the answer's: then nothing was kept.
  virtual Status Finish() = 0;
  // Whether Finish and the end of this wait for a disk.
  virtual bool waits_for_disk() const { return false; }
  virtual uint64_t held_bytes() const = 0;
};

// Builds one answer, for one or more prompts with n choices each, in OpenAI's form; LlamaAnswer has
// another one. Every stream event is `data: ` and an object that has `choices`. The last one before
// `data: [DONE]` has the receipt, and the usage on request, so the finish of the last choice waits
// for the last events of all requests. One thread at a time.
class Answer {
 public:
  // `tokenizer` may be null and must outlive this. `id` is without its prefix.
  Answer(AnswerSpec spec, size_t num_prompts, std::string id, int64_t created,
         const Tokenizer* tokenizer);
  virtual ~Answer() = default;

  // REQUIRES: no event was taken yet.
  void KeepIn(std::unique_ptr<AnswerKeeper> keeper) { keeper_ = std::move(keeper); }
  // What else stays until the answer's end counts in held_bytes().
  void Hold(uint64_t bytes) { held_bytes_ += bytes; }
  // The keeper, if its end waits for a disk; who takes it passes the later events to it.
  std::unique_ptr<AnswerKeeper> TakeSlowKeeper() {
    return keeper_ && keeper_->waits_for_disk() ? std::move(keeper_) : nullptr;
  }
  // Takes one event of a prompt's request. Returns what to stream now; "" when not streaming.
  std::string Take(size_t prompt, const Event& event);

  bool done() const { return open_requests_ == 0 || error_; }
  // The first error. Later events are ignored; the caller should cancel the other requests.
  const std::optional<Error>& error() const { return error_; }
  // The whole answer; `this` must outlive it. REQUIRES: done() without error(), not streaming.
  virtual Parts Body() const;
  // Bytes that this holds until its end, except text that waits in a stream; grows with each event.
  uint64_t held_bytes() const { return held_bytes_ + (keeper_ ? keeper_->held_bytes() : 0); }
  // Expected limit of held_bytes() for `tokens` generated tokens: exact for logprobs and ids, with
  // an average of kTextBytes per token for texts.
  uint64_t ExpectedBytes(uint64_t tokens) const;
  // The event that ends a stream which had begun before the error.
  virtual std::string ErrorEvent(const Error& error) const;
  const std::string& id() const { return id_; }
  bool streams() const { return spec_.stream; }
  // Complete once done() without error().
  const Receipt& receipt() const { return receipt_; }
  uint64_t completion_tokens() const { return completion_tokens_; }

 protected:
  // What a choice has apart from its content.
  struct Pieces {
    AnswerPieces pieces;
    std::string reasoning = "";
    std::vector<ToolCall> calls = {};
    size_t streamed_calls = 0;
  };
  struct Choice {
    bool started = false;
    bool has_progress = false;     // an event told of it
    std::string text;              // the content, if it is read
    std::unique_ptr<Pieces> read;  // null: all of the text is content
    uint64_t characters = 0;       // streaming: text_offset of the next token
    uint32_t num_tokens = 0;
    // Only without streaming, on request. (A deque does not double when it grows.)
    std::deque<TokenId> ids;
    ScoredTokens scored;
    FinishReason finish = FinishReason::kNone;
    std::optional<std::string> stop_match;
  };

  // Every event without an error, before its text is taken.
  virtual void See(uint32_t /*index*/, const Event& /*event*/) {}
  // What to stream of an event with tokens or text, or with the end of its choice.
  virtual std::string StreamEvent(uint32_t index, const Event& event);
  virtual std::string ProgressEvent(uint32_t index, const Progress& progress);
  // What to stream when the last event of a prompt's request has come.
  virtual std::string EndEvents(size_t prompt);
  // Of that event.
  virtual void AddReceipt(size_t prompt, const Event& event);
  Timings TimingsOfLast(size_t prompt, const Event& event) const;

  const AnswerSpec spec_;
  const Tokenizer* const tokenizer_;
  std::vector<Choice> choices_;
  uint64_t held_bytes_;

 private:
  void Collect(Choice* choice, const Event& event);
  void CollectText(Choice* choice, const Event& event);
  // The deltas of a chat's event, or the texts of a completion's.
  std::vector<nlohmann::json> BodiesOf(Choice* choice, const Event& event, const std::string& text);
  nlohmann::json FinishOf(const Choice& choice) const;
  std::string_view EchoOf(size_t index) const;
  void AddScored(size_t prompt, GeneratedToken token);
  nlohmann::json Envelope(bool chunk) const;
  Parts ChoiceText(size_t index) const;
  Parts VerboseText() const;  // `__verbose`
  void AddTokenIds(const std::vector<TokenId>& ids, nlohmann::json* choice) const;
  nlohmann::json Usage() const;
  nlohmann::json FinalReceipt() const;

  const std::string id_;
  const int64_t created_;
  size_t open_requests_;
  size_t open_choices_;
  std::string held_;  // the last choice's finish event, until the receipt is complete
  // Of each prompt, if its tokens have logprobs: what gives their texts, and, of streams, the
  // tokens.
  std::vector<std::unique_ptr<TokenDecoder>> scored_texts_;
  std::vector<std::vector<GeneratedToken>> scored_;
  Receipt receipt_;  // of all prompts
  Timings timings_;
  uint64_t completion_tokens_ = 0;
  std::optional<Error> error_;
  std::unique_ptr<AnswerKeeper> keeper_;
};

}  // namespace kvasir
