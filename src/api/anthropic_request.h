// Converts request bodies of Anthropic's /v1/messages to GenerateRequests.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "api/generation_call.h"
#include "api/model_view.h"
#include "kvasir/status.h"

namespace kvasir {

// Reads a request; `chat` gets the chat completion that it means, for AskedChat. Errors name the
// fields of the body.
Result<GenerationCall> ParseMessagesRequest(std::string_view body, const ModelView& model,
                                            std::string* chat);
// Counts the tokens that its prompt has. O(text).
Result<size_t> CountMessagesTokens(std::string_view body, const ModelView& model);

}  // namespace kvasir
