// Answer: what was generated for a request, before a protocol gives it a form.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/answer_pieces.h"
#include "api/head_comparison.h"
#include "api/logprobs_json.h"
#include "api/timings.h"
#include "kvasir/engine_event.h"

namespace kvasir {

// The session that an answer belongs to.
struct SessionPlace {
  std::string session;  // its id
  uint64_t index = 0;   // which of its messages the answer is
  // How many of its messages the prompt left out; absent: it may leave out none.
  std::optional<uint32_t> dropped_messages;
};

// Which parts of an answer are kept, and how its text is read. A protocol adds what it needs.
struct AnswerSpec {
  uint32_t n = 1;  // choices of each prompt; indexed prompt-major
  bool stream = false;
  bool keeps_ids = false;       // of tokens, unless the answer streams
  bool keeps_receipts = false;  // of each prompt, not only their sum
  // What a stream reports: whether it reports the prompt's progress, and timings with the tokens of
  // choice 0.
  bool return_progress = false, timings_per_token = false;
  bool predicts = false;  // the request has a prediction: usage counts its tokens
  std::optional<uint32_t> logprobs;
  // How the texts are read; null: all of a text is content.
  std::shared_ptr<const AnswerReading> reading;
  std::vector<std::string> echo;  // text in front of each prompt's answers; empty: none
  // For echo with logprobs: the first token of each prompt, which has none; and how many tokens of
  // prompts all choices show.
  std::vector<TokenId> scored_from;
  uint64_t scored_tokens = 0;
  const char* id_prefix = "cmpl-";
  const char* call_prefix = "call_";  // of calls' ids
  std::string model;                  // the name in the answer
  std::string fingerprint;            // of all that decides its bits, the request apart
  std::optional<SessionPlace> session;
  // The earlier answer that the request asks about: before this one begins, their prompts are
  // compared. Null: it asks about none.
  std::shared_ptr<HeadComparison> compared;
};

// Collects the events of one or more prompts with n choices each. One thread at a time.
class Answer {
 public:
  // What a choice has apart from its content.
  struct Pieces {
    AnswerPieces pieces;
    std::string reasoning = "";
    std::vector<ToolCall> calls = {};
    std::vector<size_t> calls_at = {};  // bytes of content before each of them
  };
  // A choice. Text, calls, ids and scored tokens are kept unless the answer streams.
  struct Choice {
    std::string text;              // the content, if it is read
    std::unique_ptr<Pieces> read;  // null: all of the text is content
    uint32_t num_tokens = 0;
    std::deque<TokenId> ids;  // a deque does not double when it grows
    ScoredTokens scored;
    FinishReason finish = FinishReason::kNone;
    std::optional<std::string> stop_match;
  };
  // What one event brought.
  struct Step {
    uint32_t choice = 0;  // of all
    bool finishes = false;
    std::vector<AnswerEvent> pieces;  // of a stream whose choices are read
  };

  // `tokenizer` may be null and must outlive this. `id` is without its prefix.
  Answer(AnswerSpec spec, size_t num_prompts, std::string id, int64_t created_unix_s,
         const Tokenizer* tokenizer);

  // Takes an event of a prompt's request. REQUIRES: it reports no error, and the prompt's last
  // event has not come.
  Step Take(size_t prompt, const Event& event);

  const AnswerSpec& spec() const { return spec_; }
  const Tokenizer* tokenizer() const { return tokenizer_; }
  const std::string& id() const { return id_; }
  int64_t created_unix_s() const { return created_unix_s_; }
  std::span<const Choice> choices() const { return choices_; }
  const Choice& choice(size_t index) const { return choices_[index]; }
  size_t num_prompts() const { return choices_.size() / spec_.n; }
  size_t PromptOf(size_t choice) const { return choice / spec_.n; }
  // Returns the text before a choice's text.
  std::string_view EchoOf(size_t choice) const;
  // Returns a stream's scored tokens of a prompt, which stand before its choices.
  std::span<const GeneratedToken> ScoredPrompt(size_t prompt) const;
  bool scores_prompts() const { return !scored_prompts_.empty(); }

  // Counts prompts and choices whose last events have not come.
  size_t open_prompts() const { return open_prompts_; }
  size_t open_choices() const { return open_choices_; }
  // Returns a receipt that is complete once a prompt's last event has come. REQUIRES:
  // spec().keeps_receipts.
  const Receipt& ReceiptOf(size_t prompt) const { return receipts_[prompt]; }
  const Timings& TimingsOf(size_t prompt) const { return prompt_timings_[prompt]; }
  // Returns sums that are complete once the last event has come. Several prompts share them: sums
  // of tokens, of preemptions and of saved time, the first miss, and the times of the prompt whose
  // first token came first.
  const Receipt& receipt() const { return receipt_; }
  const Timings& timings() const { return timings_; }
  uint64_t completion_tokens() const { return completion_tokens_; }
  // Counts the tokens of thoughts, in all choices. Absent: the answer is not read for them.
  std::optional<uint64_t> reasoning_tokens() const;

  // Counts the bytes that this holds until its end; grows with each event.
  uint64_t held_bytes() const { return held_bytes_; }
  // Returns the expected limit of held_bytes() for `tokens` generated tokens: exact for logprobs
  // and ids, with an average for texts.
  uint64_t ExpectedBytes(uint64_t tokens) const;

 private:
  void Collect(Choice* choice, const Event& event, std::vector<AnswerEvent> pieces);
  void AddScored(size_t prompt, GeneratedToken token);
  void AddReceipt(size_t prompt, const Event& event);

  const AnswerSpec spec_;
  const Tokenizer* const tokenizer_;
  const std::string id_;
  const int64_t created_unix_s_;
  std::vector<Choice> choices_;
  std::vector<Receipt> receipts_;        // [prompt], with keeps_receipts
  std::vector<Timings> prompt_timings_;  // the same
  size_t open_prompts_, open_choices_;
  // For each prompt, if its tokens have logprobs: what gives their texts, and, of streams, the
  // tokens.
  std::vector<std::unique_ptr<TokenDecoder>> scored_texts_;
  std::vector<std::vector<GeneratedToken>> scored_prompts_;
  Receipt receipt_;
  Timings timings_;
  uint64_t completion_tokens_ = 0;
  uint64_t held_bytes_ = 0;
};

}  // namespace kvasir
