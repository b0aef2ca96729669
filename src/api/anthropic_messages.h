// The prompt of Anthropic's /v1/messages as the chat that it means.
#pragma once

#include <string>

#include "base/json_tree.h"
#include "kvasir/status.h"

namespace kvasir {

// Returns the body of a chat completion with the messages and tools of a body of /v1/messages:
// `system` comes first, `tool_use` are tool calls, `tool_result` are messages of the role tool,
// `thinking` is reasoning_content. kInvalidArgument or kUnsupported (images, documents) names the
// field.
Result<std::string> ChatBodyOf(const JsonValue& body);

}  // namespace kvasir
