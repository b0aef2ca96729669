// GPT-2's alphabet: each byte as a printable character.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvasir {

// UTF-8 of the character that stands for `byte`.
std::string_view ByteLevelChar(uint8_t byte);
// The byte that c stands for.
std::optional<uint8_t> ByteOfChar(char32_t c);

}  // namespace kvasir
