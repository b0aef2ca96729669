// The request of Anthropic's /v1/messages as the chat that it means.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "api/model_view.h"
#include "api/translated_chat.h"
#include "kvasir/status.h"

namespace kvasir {

struct AnthropicChat {
  TranslatedChat chat;
};

// What a body is read for: a count of its tokens needs no max_tokens.
enum class ReadFor { kAnswer, kCount };

// Makes the chat of a body: `system` comes first, without the blocks that are the gateway's;
// results of tools are messages of the role tool, before the text beside them; texts are joined by
// line ends. Fields that have the same name and meaning in chat completions go there, Kvasir's
// additions too. kInvalidArgument or kUnsupported (images, documents) names the field.
Result<AnthropicChat> TranslateMessages(std::string_view body, const ModelView& model,
                                        ReadFor purpose);

}  // namespace kvasir
