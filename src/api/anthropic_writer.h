// An answer as Anthropic's /v1/messages has it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "api/answer_writer.h"
#include "api/text_frame.h"

namespace kvasir {

// What a request of /v1/messages says of the form of its answer.
struct AnthropicForm {
  uint32_t max_tokens = 0;  // as asked for
  // Tokens of the prompt up to the end of the last mark (`cache_control`), and how long it holds.
  uint32_t marked_tokens = 0;
  bool for_an_hour = false;
};

// Blocks: a thought, a text, calls. A stream has message_start with the figures of the prompt, then
// each block with its start, deltas and stop, then message_delta and message_stop, which has the
// receipt. One choice.
class AnthropicWriter : public AnswerWriter {
 public:
  explicit AnthropicWriter(AnthropicForm form) : form_(form) {}

  std::string StepEvents(const Answer& answer, const Answer::Step& step,
                         const Event& event) override;
  std::string ProgressEvent(const Answer&, uint32_t, const Progress&) override { return ""; }
  std::string EndEvents(const Answer& answer, size_t prompt) override;
  std::string PingEvent(const Answer& answer) override;
  std::string ErrorEvent(const Error& error) const override;
  Parts Body(const Answer& answer) const override;
  uint64_t held_bytes() const override { return sizeof(*this) + delta_.held_bytes(); }

 private:
  enum class Block : uint8_t { kNone, kThought, kText, kCall };

  nlohmann::json Usage(uint32_t prompt_tokens, uint32_t cached, uint64_t output_tokens) const;
  nlohmann::json FinalUsage(const Answer& answer) const;
  // {"id", "type", "role", "model", "stop_reason", "stop_sequence"}; without a reason.
  // `diagnostics` if the request asks about another message. `cached`: tokens of the prompt.
  nlohmann::json Envelope(const Answer& answer, uint32_t cached) const;
  const char* StopReason(const Answer::Choice& choice) const;
  std::string Start(const Answer& answer, const Event& event) const;
  std::string Take(const AnswerEvent& piece);
  // Ends the open block, and begins one of this kind.
  std::string BeginBlock(Block kind, const nlohmann::json& block);
  std::string Close();
  TextFrame DeltaFrame() const;

  const AnthropicForm form_;
  Block open_ = Block::kNone;
  TextFrame delta_;          // the event of a piece of the open block
  uint32_t num_blocks_ = 0;  // that have begun
  bool has_started_ = false;
};

// The field that continues a conversation without its messages.
inline constexpr std::string_view kThreadField = "thread";

// Returns the value of an OpenAI error's `error` in Anthropic's form: {"type", "message"}. A prompt
// that does not fit says "prompt is too long: 43939 tokens > 32768 maximum", which clients read,
// and an error of `thread` has the details after which they send all messages.
nlohmann::json AnthropicError(const nlohmann::json& error, int status);

}  // namespace kvasir
