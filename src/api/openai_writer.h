// An answer as OpenAI's API has it: a completion, or one of a chat.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/answer_writer.h"
#include "api/text_frame.h"

namespace kvasir {

// What `__verbose` says of a request (llama.cpp).
struct VerboseSpec {
  std::string settings;              // `generation_settings`: the text of an object
  std::vector<std::string> prompts;  // their texts, with special tokens
};

// What a request of OpenAI's API says of the form of its answer.
struct OpenAiForm {
  bool chat = false;  // chat.completion, else text_completion
  bool include_usage = false;
  bool return_token_ids = false;                 // choices have `token_ids` (vLLM)
  bool return_tokens = false;                    // choices have `tokens` (llama.cpp)
  std::shared_ptr<const VerboseSpec> verbosely;  // the answer has `__verbose`
};

// Every stream event is `data: ` and an object that has `choices`. The last one before
// `data: [DONE]` has the receipt, and the usage on request, so the finish of the last choice waits
// for the last events of all requests.
class OpenAiWriter : public AnswerWriter {
 public:
  explicit OpenAiWriter(OpenAiForm form) : form_(std::move(form)) {}

  void Begin(const Answer& answer) override;
  std::string StepEvents(const Answer& answer, const Answer::Step& step,
                         const Event& event) override;
  std::string ProgressEvent(const Answer& answer, uint32_t choice,
                            const Progress& progress) override;
  std::string EndEvents(const Answer& answer, size_t prompt) override;
  std::string ErrorEvent(const Error& error) const override;
  Parts Body(const Answer& answer) const override;  // openai_body.cc
  uint64_t held_bytes() const override;

 private:
  // What a stream has said of a choice.
  struct Told {
    bool started = false;
    uint64_t characters = 0;  // text_offset of the next token
    size_t calls = 0;
    // The event of a text, where it has nothing else, and what the text is called.
    TextFrame frame = {};
    std::string_view framed = {};
  };
  // The delta of a chat's event, or the text of a completion's.
  struct Delta;

  std::vector<Delta> DeltasOf(const Answer& answer, const Answer::Step& step, const Event& event,
                              std::string text);
  nlohmann::json ChunkOf(const Answer& answer, const Answer::Choice& choice,
                         const Event& event) const;
  // Tells whether events have nothing of a token but its text.
  bool shows_text_alone(const AnswerSpec& spec) const {
    return !spec.logprobs && !spec.timings_per_token && !form_.return_token_ids &&
           !form_.return_tokens;
  }
  // Returns the event of a text and nothing else; `name` lives for ever.
  std::string TextEvent(const Answer& answer, uint32_t index, std::string_view name,
                        std::string_view text);
  nlohmann::json Envelope(const Answer& answer, bool chunk) const;
  // Returns a choice of an event, without a text.
  nlohmann::json ChoiceOf(uint32_t index) const;
  void AddTokenIds(const std::vector<TokenId>& ids, nlohmann::json* choice) const;
  Parts ChoiceText(const Answer& answer, size_t index) const;
  Parts VerboseText(const Answer& answer) const;

  const OpenAiForm form_;
  std::vector<Told> told_;  // [choice]
  std::string held_;        // the last choice's finish event, until the receipt is complete
};

}  // namespace kvasir
