// Bytes as hexadecimal digits, and back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvasir {

// Which letters are digits: a to f, or A to F too.
enum class HexCase { kLower, kAny };

// Returns the value of one digit; absent: `c` is not a digit.
constexpr std::optional<uint8_t> HexDigit(char c, HexCase letters) {
  if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
  if (letters == HexCase::kAny && c >= 'A' && c <= 'F') return static_cast<uint8_t>(c - 'A' + 10);
  return std::nullopt;
}

// Returns the byte of two digits; absent: one of them is not a digit.
constexpr std::optional<uint8_t> HexByte(char high, char low, HexCase letters) {
  const auto first = HexDigit(high, letters), second = HexDigit(low, letters);
  if (!first || !second) return std::nullopt;
  return static_cast<uint8_t>(*first << 4 | *second);
}

// Tells whether `text` has only digits, in lower case; true for an empty one.
bool IsHex(std::string_view text);

// Returns two digits for each byte, in lower case.
std::string ToHex(std::span<const uint8_t> bytes);

// Returns the bytes of exactly 2 * kBytes digits; absent: `digits` is something else.
template <size_t kBytes>
std::optional<std::array<uint8_t, kBytes>> FromHex(std::string_view digits, HexCase letters) {
  if (digits.size() != 2 * kBytes) return std::nullopt;
  std::array<uint8_t, kBytes> bytes;
  for (size_t i = 0; i < kBytes; ++i) {
    const std::optional<uint8_t> byte = HexByte(digits[2 * i], digits[2 * i + 1], letters);
    if (!byte) return std::nullopt;
    bytes[i] = *byte;
  }
  return bytes;
}

}  // namespace kvasir
