// Spans of a chat: text parts with "span": true.
#pragma once

#include <vector>

#include "api/chat_prompt.h"
#include "http/json_body.h"
#include "kvasir/prompt_spans.h"
#include "kvasir/status.h"

namespace kvasir {

// A chat's prompt and the tokens of its spans in it.
struct SpannedPrompt {
  ChatPrompt prompt;
  std::vector<PromptSpan> spans;
};

// Encodes a chat whose `messages` may have spans: each by itself, and the text between by itself.
// kInvalidArgument names a span that does not stand once and unchanged in its rendered message, or
// whose ids would read otherwise there: "messages[1].content[2]"; and `messages` where there are
// too many. Errors of EncodeChat as EncodeError names them. REQUIRES: RenderMessages made `chat` of
// these fields.
Result<SpannedPrompt> EncodeSpans(JsonFields& fields, const RenderedChat& chat,
                                  const ModelView& model);

}  // namespace kvasir
