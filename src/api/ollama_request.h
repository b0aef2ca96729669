// Converts request bodies of Ollama's /api/chat and /api/generate to GenerateRequests.
#pragma once

#include <string>
#include <string_view>

#include "api/generation_call.h"
#include "api/model_view.h"
#include "kvasir/status.h"

namespace kvasir {

// Reads a request; `chat` gets the chat completion that it means, for AskedChat, and stays empty
// where it is not one. Errors name the fields of the body. Without a prompt the result has no
// requests: so clients load a model.
Result<GenerationCall> ParseOllamaChat(std::string_view body, const ModelView& model,
                                       std::string* chat);
Result<GenerationCall> ParseOllamaGenerate(std::string_view body, const ModelView& model,
                                           std::string* chat);

}  // namespace kvasir
