// GenerationCall: what a request of any protocol asks to have generated.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/answer.h"
#include "api/answer_writer.h"
#include "api/prompt_heads.h"
#include "kvasir/generate_request.h"

namespace kvasir {

struct GenerationCall {
  std::vector<GenerateRequest> requests;  // one per prompt
  uint32_t at_once = 0;                   // GenerationStart::at_once
  AnswerSpec spec;
  std::unique_ptr<AnswerWriter> writer;
  std::optional<uint32_t> slot;     // whose last request this is (server/slots.h)
  std::vector<std::string> unseen;  // of the request's `ignored`: what its prompt does not show
  PromptHead head;                  // of a chat
};

}  // namespace kvasir
