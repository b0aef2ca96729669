// Chat templates that a user may ask for by name.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace kvasir {

// Returns the Jinja source of a template; absent: no such name. They know messages only, no tools:
// a system message goes before the next message of the user where the format has no place for it,
// and other roles are rendered as the user's.
std::optional<std::string_view> BuiltinTemplate(std::string_view name);
std::vector<std::string_view> BuiltinTemplateNames();

}  // namespace kvasir
