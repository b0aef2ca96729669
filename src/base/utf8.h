// UTF-8: validation, characters, and the lossy decoding of broken bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir {

// Returns the offset of the first byte that is not part of a well-formed character; text.size() if
// all are.
size_t FirstInvalidUtf8(std::string_view text);

// Returns the character at text[*pos] of well-formed text; moves *pos past it.
// REQUIRES: *pos < text.size().
char32_t NextChar(std::string_view text, size_t* pos);

// Tells whether a byte goes on with a character that an earlier byte began.
constexpr bool ContinuesChar(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// Returns the first byte of the character that ends before text[end]. REQUIRES: 0 < end <=
// text.size().
size_t StartOfCharBefore(std::string_view text, size_t end);

void AppendUtf8(char32_t c, std::string* out);

// Appends bytes to out; each maximal broken part becomes one U+FFFD (Unicode 3.9, like Rust and
// browsers). Stops before an incomplete character at the end, which more bytes may complete (at
// most 3 bytes). Returns the number of bytes taken.
size_t AppendLossyUtf8(std::string_view bytes, std::string* out);

inline constexpr std::string_view kReplacementChar = "\xEF\xBF\xBD";

// Tells what a character is, as Rust's char defines it (Unicode White_Space, N*, M*) and as
// `tokenizers` needs it.
bool IsWhitespace(char32_t c);
bool IsNumeric(char32_t c);
bool IsPunctuation(char32_t c);  // ASCII punctuation or P*
bool IsCombiningMark(char32_t c);
bool IsWordChar(char32_t c);  // \w of Rust's regex: letters, marks, Nd, Pc

}  // namespace kvasir
