#include "base/hex.h"

#include <algorithm>

namespace kvasir {

bool IsHex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return HexDigit(c, HexCase::kLower).has_value(); });
}

std::string ToHex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (uint8_t b : bytes) {
    hex += kDigits[b >> 4];
    hex += kDigits[b & 15];
  }
  return hex;
}

}  // namespace kvasir
