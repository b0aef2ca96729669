#include "base/base64.h"

#include <array>
#include <cstdint>

namespace kvasir {
namespace {

constexpr uint8_t kNoDigit = 64;

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<uint8_t, 256> Digits() {
  std::array<uint8_t, 256> digits{};
  digits.fill(kNoDigit);
  for (size_t i = 0; i < kDigits.size(); ++i) {
    digits[static_cast<uint8_t>(kDigits[i])] = static_cast<uint8_t>(i);
  }
  return digits;
}
constexpr std::array<uint8_t, 256> kDigitOf = Digits();

}  // namespace

std::optional<std::string> DecodeBase64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t held = 0, bits = 0;
  for (char c : text) {
    const uint8_t digit = kDigitOf[static_cast<uint8_t>(c)];
    if (digit == kNoDigit) return std::nullopt;
    held = (held << 6 | digit) & 0xFFFF;
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes.push_back(static_cast<char>(held >> bits & 0xFF));
  }
  return bytes;
}

std::string EncodeBase64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view three = bytes.substr(i, 3);
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) {
      bits = bits << 8 | (j < three.size() ? static_cast<uint8_t>(three[j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += j <= three.size() ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

}  // namespace kvasir
