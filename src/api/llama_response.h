// The events of a generation as answers of llama.cpp's server: /completion and /infill.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "api/openai_response.h"

namespace kvasir {

// An object for each choice; a list of them where there are several. A stream has an event for each
// piece of text, with `content` and `stop` false, and one with `stop` true and all else at the end
// of each choice; no event has `choices`, and none comes after the last one. The receipt is that of
// the choice's prompt. One thread at a time.
class LlamaAnswer : public Answer {
 public:
  // REQUIRES: spec.llama.
  LlamaAnswer(AnswerSpec spec, size_t num_prompts, std::string id, const Tokenizer* tokenizer);

  Parts Body() const override;
  std::string ErrorEvent(const Error& error) const override;

 private:
  std::string StreamEvent(uint32_t index, const Event& event) override;
  std::string ProgressEvent(uint32_t index, const Progress& progress) override;
  std::string EndEvents(size_t prompt) override;
  void AddReceipt(size_t prompt, const Event& event) override;

  // The beginning of an event's object, up to the value of `content`.
  std::string OpenEvent(uint32_t index) const;
  // The fields of a finished choice that are never long.
  nlohmann::json FinalFields(size_t index) const;
  // The object of a finished choice.
  Parts FinalText(size_t index) const;
  bool Wants(std::string_view field) const;
  const LlamaSpec& llama() const { return *spec_.llama; }

  // [prompt], once its request has ended.
  std::vector<Receipt> receipts_;
  std::vector<Timings> timings_;
  std::vector<bool> has_new_line_;  // [choice]
};

}  // namespace kvasir
