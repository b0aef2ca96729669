// An answer as Ollama's /api/chat and /api/generate have it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "api/answer_writer.h"

namespace kvasir {

struct OllamaForm {
  bool generates = false;  // /api/generate: a `response`, else a `message`
};

// An object; in a stream one a line, each with what is new, and the last one with `done`, the
// figures and the receipt. Calls come whole. One choice.
class OllamaWriter : public AnswerWriter {
 public:
  explicit OllamaWriter(OllamaForm form) : form_(form) {}

  const char* StreamType() const override { return "application/x-ndjson"; }
  std::string StepEvents(const Answer& answer, const Answer::Step& step,
                         const Event& event) override;
  std::string ProgressEvent(const Answer&, uint32_t, const Progress&) override { return ""; }
  std::string EndEvents(const Answer& answer, size_t prompt) override;
  std::string PingEvent(const Answer& answer) override;
  std::string ErrorEvent(const Error& error) const override;
  Parts Body(const Answer& answer) const override;
  uint64_t held_bytes() const override {
    return sizeof(*this) + call_.name.capacity() + call_.arguments.capacity();
  }

 private:
  // Returns a line of a stream that goes on; `message`: what it has beside role and content.
  nlohmann::json Line(const Answer& answer, std::string_view content, nlohmann::json message) const;
  nlohmann::json Final(const Answer& answer, nlohmann::json line) const;
  std::string Take(const Answer& answer, const AnswerEvent& piece);

  const OllamaForm form_;
  ToolCall call_;  // while its arguments come
};

}  // namespace kvasir
