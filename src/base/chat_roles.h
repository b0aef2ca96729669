// The roles that a message of a chat may have.
#pragma once

#include <algorithm>
#include <string_view>

namespace kvasir {

inline constexpr std::string_view kChatRoles[] = {"system", "developer", "user", "assistant",
                                                  "tool"};
// OpenAI's older name of "tool".
inline constexpr std::string_view kFunctionRole = "function";

constexpr bool IsChatRole(std::string_view role) {
  return std::ranges::find(kChatRoles, role) != std::end(kChatRoles);
}

}  // namespace kvasir
