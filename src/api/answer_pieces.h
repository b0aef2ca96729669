// AnswerPieces: one choice of an answer as thoughts, content and tool calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chat/answer_parser.h"
#include "kvasir/engine_event.h"

namespace kvasir {

// Reads the events of a choice. Its calls get ids that depend on the answer's id, the choice and
// their place, unless the model wrote one that its template takes. One thread at a time.
class AnswerPieces {
 public:
  // `call_prefix`: of the ids; it lives for ever.
  AnswerPieces(std::shared_ptr<const AnswerReading> reading, std::string answer_id, uint32_t choice,
               const char* call_prefix = "call_");

  // Returns what the event makes certain; everything when it ends the choice. O(the event),
  // amortised.
  std::vector<AnswerEvent> Take(const Event& event);

  size_t num_calls() const { return parser_.num_calls(); }
  // Counts tokens from a thought's opening mark, or the answer's first one, to its closing mark.
  uint64_t reasoning_tokens() const { return reasoning_tokens_; }
  uint64_t held_bytes() const { return parser_.held_bytes() + thoughts_.held_bytes(); }

 private:
  std::string CallId(const std::string& written);

  std::shared_ptr<const AnswerReading> reading_;
  std::string answer_id_;
  const char* call_prefix_;
  uint32_t choice_, num_ids_ = 0;
  AnswerParser parser_;
  // Reads the texts of tokens: those of events wait where a stop string may begin.
  AnswerParser thoughts_;
  uint64_t reasoning_tokens_ = 0;
};

}  // namespace kvasir
