// An answer as Ollama's /api/chat and /api/generate have it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/answer_writer.h"
#include "api/text_frame.h"

namespace kvasir {

struct OllamaForm {
  bool generates = false;  // /api/generate: a `response`, else a `message`
  bool unloads = false;    // of an answer without a prompt: what the client asked for
  // The last line has `context`: these ids, and those of the answer. Absent: it has none.
  std::optional<std::vector<TokenId>> context = {};
};

// An object; in a stream one a line, each with what is new, and the last one with `done`, the
// figures and the receipt. Calls come whole. One choice; none: a client loads the model.
class OllamaWriter : public AnswerWriter {
 public:
  explicit OllamaWriter(OllamaForm form) : form_(std::move(form)) {}

  const char* StreamType() const override { return "application/x-ndjson"; }
  void Begin(const Answer& answer) override;
  void See(const Answer& answer, const Answer::Step& step, const Event& event) override;
  std::string StepEvents(const Answer& answer, const Answer::Step& step,
                         const Event& event) override;
  std::string ProgressEvent(const Answer&, uint32_t, const Progress&) override { return ""; }
  std::string EndEvents(const Answer& answer, size_t prompt) override;
  std::string PingEvent(const Answer& answer) override;
  std::string ErrorEvent(const Error& error) const override;
  Parts Body(const Answer& answer) const override;
  uint64_t held_bytes() const override {
    const size_t ids = form_.context ? form_.context->capacity() : 0;
    return sizeof(*this) + call_.name.capacity() + call_.arguments.capacity() +
           content_.held_bytes() + thought_.held_bytes() + ids * sizeof(TokenId);
  }

 private:
  // Returns a line of a stream that goes on; `message`: what it has beside role and content.
  nlohmann::json Line(const Answer& answer, std::string_view content, nlohmann::json message) const;
  nlohmann::json Final(const Answer& answer, nlohmann::json line) const;
  nlohmann::json Load(const Answer& answer) const;
  std::string Take(const Answer& answer, const AnswerEvent& piece);

  OllamaForm form_;
  TextFrame content_, thought_;  // lines of pieces, up to their time
  ToolCall call_;                // while its arguments come
};

}  // namespace kvasir
