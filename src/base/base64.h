// Base64 (RFC 4648, section 4).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

// Returns the bytes; `=` at the end may be missing. Absent: another character is in the text.
std::optional<std::string> DecodeBase64(std::string_view text);

// Returns the text, with `=` at its end.
std::string EncodeBase64(std::string_view bytes);

}  // namespace kvasir
