// ChatPart: something that a chat says and that its text should show.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir::jinja {

struct ChatPart {
  enum class Kind : uint8_t {
    kTools,
    kContent,
    kReasoning,  // reasoning_content
    kRefusal,
    kCallName,
    kCallArguments,
    kMember,    // another one of the message, such as its name
    kVariable,  // one of the template's that a request sets
  };
  Kind kind = Kind::kTools;
  bool is_alone = false;  // the message has no other part but members
  uint32_t message = 0;   // its index; not of tools and variables
  uint32_t call = 0;      // its index in the message; only of calls
  std::string member;     // of kMember, of kVariable, and of calls that have one
  bool operator==(const ChatPart&) const = default;
};

// Tells whether a text has no visible character. A blank part need not be shown.
bool IsBlank(std::string_view text);

}  // namespace kvasir::jinja
