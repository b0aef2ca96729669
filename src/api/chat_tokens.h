// The tokens of the prompt that a chat has.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "api/model_view.h"
#include "http/json_body.h"
#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir {

// Counts the tokens that the prompt of a chat completion's body has. Errors: those of the chat
// completion itself. O(text).
Result<size_t> CountChatTokens(std::string_view body, const ModelView& model);
// Returns those of the chat that `fields` say. `tree`: as RenderMessages takes it. Errors and cost
// as above.
Result<std::vector<TokenId>> ChatTokens(JsonFields& fields, JsonTree* tree, const ModelView& model);
// Counts those of the chat that `fields` say. `tree`: as RenderMessages takes it.
Result<size_t> CountChatTokens(JsonFields& fields, JsonTree* tree, const ModelView& model);

}  // namespace kvasir
