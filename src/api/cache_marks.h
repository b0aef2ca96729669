// Marks of messages up to whose ends a prompt is kept longer than others.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/json_fields.h"
#include "base/json_tree.h"
#include "chat/chat_template.h"
#include "kvasir/status.h"

namespace kvasir {

// A member of a message, or of a text part: true, or {"ttl": "5m"}.
inline constexpr std::string_view kBreakpoint = "prompt_cache_breakpoint";

struct UnmarkedMessages {
  std::vector<JsonValue> messages;  // without their marks: no template sees them
  std::vector<CacheMark> marks;     // in the order of the messages
};

// Takes the marks from the messages of a request. A mark without a time has that of
// prompt_cache_options.ttl ("30m", "12h"), else of prompt_cache_retention ("in_memory", "24h"),
// else 30 minutes. prompt_cache_retention "24h" marks the last message where no one is marked.
// kInvalidArgument names the field. O(members).
Result<UnmarkedMessages> TakeMarks(JsonFields& fields, JsonTree* tree);

}  // namespace kvasir
