// GPT-2's alphabet: each byte as a printable character.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvasir {

// Returns the character for `byte`, as UTF-8.
std::string_view ByteLevelChar(uint8_t byte);
// Returns the byte of the character c.
std::optional<uint8_t> ByteOfChar(char32_t c);

}  // namespace kvasir
