#include "text/sentences.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "base/ascii.h"
#include "base/check.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr std::u32string_view kWideMarks = U"。！？．｡";
// Latin and its kin, Armenian, Arabic, Urdu, Devanagari and its kin, Sinhala, Tibetan, Burmese,
// Ethiopic, Khmer.
constexpr std::u32string_view kMarks = U".!?…‼⁇⁈⁉։؟۔।॥෴།༎။።፧។៕";
constexpr std::u32string_view kClosing = U"\"')]}»›”’」』）】〉》〕";
// English, French, German, Spanish and Portuguese.
constexpr std::array<std::string_view, 20> kTitles = {
    "Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Sr",  "Jr",   "Sra", "Dra",
    "vs", "cf",  "No", "Nr", "Hr",   "Fr", "Mme", "Mlle", "bzw", "ca"};

bool IsIn(std::u32string_view set, char32_t c) { return set.find(c) != set.npos; }
bool IsWide(char32_t c) { return IsIn(kWideMarks, c); }
bool IsMark(char32_t c) { return IsIn(kMarks, c) || IsWide(c); }
bool IsLineBreak(char32_t c) { return c == '\n' || c == 0x2028 || c == 0x2029; }

utf8proc_category_t CategoryOf(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}
bool IsLower(char32_t c) { return CategoryOf(c) == UTF8PROC_CATEGORY_LL; }

char32_t CharOrNul(std::string_view text, size_t pos) {
  return pos < text.size() ? NextChar(text, &pos) : U'\0';
}

// Returns the end of the characters from `pos` on of which `is` holds.
template <typename Is>
size_t Skip(std::string_view text, size_t pos, const Is& is) {
  while (pos < text.size()) {
    size_t next = pos;
    if (!is(NextChar(text, &next))) break;
    pos = next;
  }
  return pos;
}

// Returns whether the full stop after `sentence` belongs to its last word.
bool StopIsOfWord(std::string_view sentence) {
  if (std::ranges::all_of(sentence, IsAsciiDigit)) return true;
  size_t word = sentence.size();  // where the last word begins
  while (word > 0) {
    const size_t last = StartOfCharBefore(sentence, word);
    const char32_t c = CharOrNul(sentence, last);
    if (IsWhitespace(c) || c == '.' || IsIn(U"([{\"'«“‘-", c)) break;
    word = last;
  }
  const std::string_view text = sentence.substr(word);
  if (text.empty()) return false;
  size_t first = 0;
  const char32_t c = NextChar(text, &first);
  const auto category = CategoryOf(c);
  const bool letter = category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LU;
  return (letter && first == text.size()) || std::ranges::find(kTitles, text) != kTitles.end();
}

}  // namespace

Sentences::Sentences(std::string_view text) : text_(text) {
  size_t begin = Skip(text, 0, IsWhitespace);
  for (size_t pos = begin; pos < text.size();) {
    const size_t at = pos;
    const char32_t c = NextChar(text, &pos);
    if (IsWhitespace(c)) {
      pos = Skip(text, pos, IsWhitespace);
      size_t breaks = 0;
      for (size_t i = at; i < pos;) breaks += IsLineBreak(NextChar(text, &i));
      if (breaks < 2 && pos < text.size()) continue;
      Add(begin, at);
      begin = pos;
      continue;
    }
    if (!IsMark(c)) continue;
    char32_t last = c;
    pos = Skip(text, pos, [&](char32_t next) {
      const bool is = IsMark(next);
      if (is) last = next;
      return is;
    });
    const bool one_stop = c == '.' && pos == at + 1;
    const size_t end = Skip(text, pos, [](char32_t next) { return IsIn(kClosing, next); });
    const size_t next = Skip(text, end, IsWhitespace);
    const bool closes = end > pos;
    pos = end;
    if (next == end && end < text.size() && !IsWide(last)) continue;
    if ((c == '.' || closes) && IsLower(CharOrNul(text, next))) continue;
    if (one_stop && StopIsOfWord(text.substr(begin, at - begin))) continue;
    Add(begin, end);
    begin = pos = next;
  }
  Add(begin, text.size());
}

void Sentences::Add(size_t begin, size_t end) {
  if (begin < end) ranges_.push_back({begin, end});
}

std::string_view Sentences::BreakBefore(size_t i) const {
  if (i == 0) return {};
  const size_t begin = ranges_[i - 1].end;
  const std::string_view gap = text_.substr(begin, ranges_[i].begin - begin);
  return gap.find('\n') == gap.npos ? std::string_view() : gap;
}

std::string_view Sentences::Joint(std::string_view before, std::string_view line_break) {
  if (!line_break.empty() || before.empty()) return line_break;
  return IsWide(CharOrNul(before, StartOfCharBefore(before, before.size()))) ? "" : " ";
}

std::string Sentences::Join(std::span<const std::string> translations) const {
  KV_CHECK(translations.size() == size());
  std::string joined;
  for (size_t i = 0; i < translations.size(); ++i) {
    if (i > 0) joined += Joint(translations[i - 1], BreakBefore(i));
    joined += translations[i];
  }
  return joined;
}

}  // namespace kvasir
