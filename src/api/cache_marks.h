// Marks of messages up to whose ends a prompt is kept longer than others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/head_comparison.h"
#include "base/json_fields.h"
#include "base/json_tree.h"
#include "chat/chat_template.h"
#include "kvasir/status.h"

namespace kvasir {

// A member of a message, or of a text part: true, or {"ttl": "5m"}.
inline constexpr std::string_view kBreakpoint = "prompt_cache_breakpoint";

// Lists the unknown fields of a mark, whose path within the object of `fields` is `path`.
void ListUnknown(const JsonValue& mark, const std::string& path, JsonFields& fields);

// Returns the time of a mark, `otherwise` if it has none itself; absent: it is null or false.
// `path`: of the mark, which kInvalidArgument names.
Result<std::optional<uint32_t>> TimeOfMark(const JsonValue& mark, const std::string& path,
                                           uint32_t otherwise = 0);

struct UnmarkedMessages {
  std::vector<JsonValue> messages;  // without their marks: no template sees them
  std::vector<CacheMark> marks;     // in the order of the messages
};

// Takes the marks from the messages of a request. A mark without a time has that of
// prompt_cache_options.ttl ("30m", "12h"), else of prompt_cache_retention ("in_memory", "24h"),
// else 30 minutes. prompt_cache_retention "24h" marks the last message where no one is marked.
// kInvalidArgument names the field. O(members).
Result<UnmarkedMessages> TakeMarks(JsonFields& fields, JsonTree* tree);

// What prompt_cache_options says beside the time of marks.
struct CacheOptions {
  bool prewarms = false;                     // the prompt is computed, and nothing answered
  std::shared_ptr<HeadComparison> compared;  // of `comparison_response_id`, or null
};
// Reads them; errors stay in `fields`.
CacheOptions ReadCacheOptions(JsonFields& fields);

}  // namespace kvasir
