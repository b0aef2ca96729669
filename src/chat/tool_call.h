// Tool calls out of the texts that models write for them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/answer_format.h"

namespace kvasir {

// A tool that a request offers.
struct ToolSpec {
  std::string name;
  std::vector<std::string> text_parameters;  // whose schema has the type string
};

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object, as the model wrote it where it wrote JSON
  std::string id;         // that the model wrote; "": none
};

// These give nullopt where the text is not a call of one of the tools. O(text).

// Returns an object with `name` and `arguments` or `parameters`: an object, or a string that has
// one. `needs_arguments`: else a call may leave them out. `object` must be valid JSON, except
// UTF-8.
std::optional<ToolCall> ReadJsonCall(std::string_view object, bool needs_arguments,
                                     const std::vector<ToolSpec>& tools);
// Returns what stands before the arguments in kNamed and kDeepSeek, and the arguments.
std::optional<ToolCall> ReadNamedCall(CallBody body, std::string_view header,
                                      std::string_view arguments,
                                      const std::vector<ToolSpec>& tools);
// Reads from <function= to </function>. A parameter is text where its schema says so, or where it
// is not JSON.
std::optional<ToolCall> ReadXmlCall(std::string_view text, const std::vector<ToolSpec>& tools);

}  // namespace kvasir
