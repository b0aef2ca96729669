// ASCII letters and digits, whatever the locale is, and texts without the blanks around them.
#pragma once

#include <string>
#include <string_view>

namespace kvasir {

constexpr bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }
constexpr bool IsAsciiLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
constexpr bool IsAsciiAlnum(char c) { return IsAsciiDigit(c) || IsAsciiLetter(c); }

// Puts a to z in the place of A to Z; every other byte stays.
constexpr char LowerAscii(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
inline std::string LowerAscii(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = LowerAscii(c);
  return lower;
}

inline constexpr std::string_view kBlanks = " \t\r\n";  // the white space of JSON

constexpr bool IsBlank(char c) { return kBlanks.find(c) != kBlanks.npos; }

// Returns the part of `text` from its first to its last byte that is not in `blanks`.
constexpr std::string_view Trimmed(std::string_view text, std::string_view blanks = kBlanks) {
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

}  // namespace kvasir
