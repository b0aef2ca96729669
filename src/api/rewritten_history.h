// Whether a chat template renders turns differently once they are no longer the last.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "api/chat_prompt.h"
#include "base/json_tree.h"

namespace kvasir {

// `chat` is an object with `messages` and, if the chat has them, `tools` and
// `chat_template_kwargs`, as RenderMessages reads it; `whole` is its rendering. REQUIRES: message
// `answer` is there, and another one before it.
//
// The answer was generated after the rendering of the messages before it with the generation
// prompt. Where that, with what was `written` (empty: the answer's content), is not a prefix of
// `whole`: the message of `whole` in which they first differ; the number of messages if that is
// after them all. Absent: it is a prefix, or the template cannot render the messages before it.
// O(rendering).
std::optional<size_t> FindRewritten(const JsonValue& chat, size_t answer, const RenderedChat& whole,
                                    const ModelView& model, JsonTree* tree,
                                    std::string_view written = {});

// Whether one of the chat's last answers (at most kMostTurns of them are tried) was rewritten from
// this message on. `written`: of each message, or none. O(kMostTurns renderings).
inline constexpr size_t kMostTurns = 8;
bool IsRewrittenFrom(const JsonValue& chat, size_t message, const ModelView& model, JsonTree* tree,
                     std::span<const std::string_view> written = {});

// Tells whether the template rewrote nothing in a few chats: with and without a system message,
// tools and thinking. Absent: the model has no template, or each of these chats fails or takes more
// than kTriedSteps.
std::optional<bool> IsPrefixStable(ModelView model);

}  // namespace kvasir
