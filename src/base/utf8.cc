#include "base/utf8.h"

#include <utf8proc.h>

#include <cstring>

namespace kvasir {
namespace {

// Length of the character that starts with `lead`, and the bounds of its second byte (RFC 3629,
// section 4); length 0 when no character starts with `lead`.
struct Lead {
  size_t length;
  uint8_t second_min, second_max;
};

Lead LeadOf(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};  // up to U+10FFFF
  return {0, 0, 0};
}

struct Scan {
  size_t length;  // bytes of the longest well-formed prefix of one character, at least 1
  bool whole;     // a whole character
  bool cut;       // well formed so far, and the text ends
};

Scan ScanChar(std::string_view bytes) {
  const Lead lead = LeadOf(static_cast<uint8_t>(bytes[0]));
  if (lead.length == 0) return {1, false, false};
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {i, false, true};
    const uint8_t byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.second_min : 0x80;
    const uint8_t high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return {i, false, false};
  }
  return {lead.length, true, false};
}

// Counts the bytes of ASCII at the front of text, eight at a time.
size_t AsciiPrefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080ull) break;
  }
  while (i < text.size() && static_cast<uint8_t>(text[i]) < 0x80) ++i;
  return i;
}

utf8proc_category_t CategoryOf(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

}  // namespace

size_t FirstInvalidUtf8(std::string_view text) {
  size_t pos = 0;
  while (true) {
    pos += AsciiPrefix(text.substr(pos));
    if (pos == text.size()) return pos;
    const Scan scan = ScanChar(text.substr(pos));
    if (!scan.whole) return pos;
    pos += scan.length;
  }
}

char32_t NextChar(std::string_view text, size_t* pos) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[i])); };
  const size_t i = *pos;
  const char32_t lead = byte(i);
  if (lead < 0x80) {
    *pos = i + 1;
    return lead;
  }
  if (lead < 0xE0 && i + 2 <= text.size()) {
    *pos = i + 2;
    return (lead & 0x1F) << 6 | (byte(i + 1) & 0x3F);
  }
  if (lead < 0xF0 && i + 3 <= text.size()) {
    *pos = i + 3;
    return (lead & 0x0F) << 12 | (byte(i + 1) & 0x3F) << 6 | (byte(i + 2) & 0x3F);
  }
  if (i + 4 <= text.size()) {
    *pos = i + 4;
    return (lead & 0x07) << 18 | (byte(i + 1) & 0x3F) << 12 | (byte(i + 2) & 0x3F) << 6 |
           (byte(i + 3) & 0x3F);
  }
  *pos = text.size();  // an incomplete character: not well-formed; stay inside the text
  return 0xFFFD;
}

size_t StartOfCharBefore(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && ContinuesChar(text[begin])) --begin;
  return begin;
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

size_t AppendLossyUtf8(std::string_view bytes, std::string* out) {
  size_t pos = 0;
  while (pos < bytes.size()) {
    const Scan scan = ScanChar(bytes.substr(pos));
    if (scan.cut) return pos;
    if (scan.whole) {
      out->append(bytes.substr(pos, scan.length));
    } else {
      out->append(kReplacementChar);
    }
    pos += scan.length;
  }
  return pos;
}

bool IsWhitespace(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const utf8proc_category_t category = CategoryOf(c);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  const utf8proc_category_t category = CategoryOf(c);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool IsCombiningMark(char32_t c) {
  const utf8proc_category_t category = CategoryOf(c);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool IsWordChar(char32_t c) {
  const utf8proc_category_t category = CategoryOf(c);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ND) ||
         category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_PC || c == 0x200C ||
         c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

}  // namespace kvasir
