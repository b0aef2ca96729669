// An answer as llama.cpp's server has it: /completion and /infill.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/answer_writer.h"

namespace kvasir {

// What a request of llama.cpp's API says of the form of its answer.
struct LlamaSpec {
  std::string settings;                      // `generation_settings`: the text of an object
  std::vector<std::string> prompts;          // their texts; empty: they are not said
  std::vector<uint32_t> prompt_tokens;       // of each prompt
  std::vector<std::string> response_fields;  // paths; empty: all
  int64_t id_slot = -1;                      // as asked for
  uint32_t ctx_size = 0;
  bool post_sampling_probs = false;

  Probs probs() const { return post_sampling_probs ? Probs::kSampled : Probs::kModel; }
};

// An object for each choice; a list of them where there are several. A stream has an event for each
// piece of text, with `content` and `stop` false, and one with `stop` true and all else at the end
// of each choice; no event has `choices`, and none comes after the last one. The receipt is that of
// the choice's prompt.
class LlamaWriter : public AnswerWriter {
 public:
  explicit LlamaWriter(LlamaSpec spec) : spec_(std::move(spec)) {}

  void Begin(const Answer& answer) override { has_new_line_.resize(answer.choices().size()); }
  void See(const Answer& answer, const Answer::Step& step, const Event& event) override;
  std::string StepEvents(const Answer& answer, const Answer::Step& step,
                         const Event& event) override;
  std::string ProgressEvent(const Answer& answer, uint32_t choice,
                            const Progress& progress) override;
  std::string EndEvents(const Answer& answer, size_t prompt) override;
  std::string ErrorEvent(const Error& error) const override;
  Parts Body(const Answer& answer) const override;
  uint64_t held_bytes() const override;

 private:
  // Returns the beginning of an event's object, up to the value of `content`.
  std::string BeginEvent(const Answer& answer, uint32_t index) const;
  // Returns the fields of a finished choice that are never long.
  nlohmann::json FinalFields(const Answer& answer, size_t index) const;
  // Returns the object of a finished choice.
  Parts FinalText(const Answer& answer, size_t index) const;
  bool Wants(std::string_view field) const;

  const LlamaSpec spec_;
  std::vector<bool> has_new_line_;  // [choice]
};

}  // namespace kvasir
