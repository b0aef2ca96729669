#include "jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "base/utf8.h"

namespace kvasir::jinja {

namespace {

bool EndsAfter(size_t offset, const Text::Run& run) { return offset < run.end; }

}  // namespace

void Text::Append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  const bool was_empty = bytes_.empty();
  bytes_.append(bytes);
  const auto end = static_cast<uint32_t>(bytes_.size());
  if (was_empty) {
    first_ = {end, origin};
  } else if (Run& last = more_.empty() ? first_ : more_.back(); last.origin == origin) {
    last.end = end;
  } else {
    if (more_.empty()) more_.push_back(first_);
    more_.push_back({end, origin});
  }
}

void Text::Append(const Text& other) { Append(other, 0, other.size()); }

void Text::Append(const Text& other, size_t begin, size_t end) {
  const std::span<const Run> runs = other.runs();
  auto run = std::upper_bound(runs.begin(), runs.end(), begin, EndsAfter);
  while (begin < end) {
    const size_t stop = std::min<size_t>(end, run->end);
    Append(other.view().substr(begin, stop - begin), run->origin);
    begin = stop;
    ++run;
  }
}

void Text::AppendFor(const Text& other, std::optional<uint32_t> message) {
  size_t begin = 0;
  for (const Run& run : other.runs()) {
    Origin origin = run.origin;
    if (!origin.message) origin.message = message;
    Append(other.view().substr(begin, run.end - begin), origin);
    begin = run.end;
  }
}

Text Text::Slice(size_t begin, size_t end) const {
  Text out;
  out.Append(*this, begin, end);
  return out;
}

Origin Text::OriginAt(size_t offset) const {
  const std::span<const Run> all = runs();
  return std::upper_bound(all.begin(), all.end(), offset, EndsAfter)->origin;
}

Origin Text::Summary() const {
  Origin out;
  for (const Run& run : runs()) {
    out.input |= run.origin.input;
    if (!out.message) out.message = run.origin.message;
    if (out.part == 0) out.part = run.origin.part;
  }
  return out;
}

size_t FindText(std::string_view text, std::string_view part, size_t begin) {
  if (begin > text.size()) return text.npos;
  const void* found = memmem(text.data() + begin, text.size() - begin, part.data(), part.size());
  return found == nullptr ? text.npos : static_cast<const char*>(found) - text.data();
}

size_t FindLastText(std::string_view text, std::string_view part) {
  const std::string reversed(text.rbegin(), text.rend()), wanted(part.rbegin(), part.rend());
  const size_t found = FindText(reversed, wanted);
  return found == text.npos ? found : text.size() - found - part.size();
}

namespace {

// Returns the code point at offset, or -1, and its number of bytes.
utf8proc_int32_t Decode(std::string_view text, size_t offset, size_t* bytes) {
  utf8proc_int32_t code = -1;
  const auto n = utf8proc_iterate(reinterpret_cast<const uint8_t*>(text.data()) + offset,
                                  static_cast<utf8proc_ssize_t>(text.size() - offset), &code);
  *bytes = n > 0 ? static_cast<size_t>(n) : 1;
  return n > 0 ? code : -1;
}

}  // namespace

size_t CharSize(std::string_view text, size_t offset) {
  if (static_cast<unsigned char>(text[offset]) < 0x80) return 1;
  size_t n = 0;
  Decode(text, offset, &n);
  return n;
}

char32_t CharAt(std::string_view text, size_t offset) {
  size_t n = 0;
  const utf8proc_int32_t code = Decode(text, offset, &n);
  return code >= 0 ? static_cast<char32_t>(code) : 0xFFFD;
}

size_t PreviousChar(std::string_view text, size_t offset) {
  size_t begin = offset - 1;
  while (begin > 0 && offset - begin < 4 && ContinuesChar(text[begin])) --begin;
  // Each byte that is not UTF-8 is one character.
  return begin + CharSize(text, begin) == offset ? begin : offset - 1;
}

size_t CharCount(std::string_view text) {
  size_t count = 0;
  for (size_t i = 0; i < text.size(); i += CharSize(text, i)) ++count;
  return count;
}

size_t CharOffset(std::string_view text, size_t character) {
  size_t i = 0;
  while (character > 0 && i < text.size()) {
    i += CharSize(text, i);
    --character;
  }
  return i;
}

bool IsSpace(char32_t code) {
  if (code < 0x80) return (code >= 9 && code <= 13) || (code >= 28 && code <= 32);
  if (code == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

bool IsPrintable(char32_t code) {
  if (code < 0x80) return code >= 32 && code < 127;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

bool IsAlpha(char32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

std::string UpperOf(char32_t code) {
  switch (code) {  // full mappings that occur in living languages
    case 0xDF:
      return "SS";
    case 0x149:
      return "\xCA\xBCN";
    case 0x1F0:
      return "J\xCC\x8C";
    case 0x587:
      return "\xD4\xB5\xD5\x92";
    case 0xFB00:
      return "FF";
    case 0xFB01:
      return "FI";
    case 0xFB02:
      return "FL";
    default:
      break;
  }
  std::string out;
  AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))), &out);
  return out;
}

std::string LowerOf(char32_t code) {
  if (code == 0x130) return "i\xCC\x87";  // capital I with a dot above
  std::string out;
  AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))), &out);
  return out;
}

Text MapChars(const Text& text, const std::function<std::string(char32_t, size_t)>& map) {
  Text out;
  out.Reserve(text.size());
  for (size_t i = 0, n = 0; i < text.size(); i += n) {
    const utf8proc_int32_t code = Decode(text.view(), i, &n);
    if (code < 0) {
      out.Append(text, i, i + n);
    } else {
      out.Append(map(static_cast<char32_t>(code), i), text.OriginAt(i));
    }
  }
  return out;
}

Text Upper(const Text& text) {
  return MapChars(text, [](char32_t code, size_t) { return UpperOf(code); });
}

Text Lower(const Text& text) {
  bool after_letter = false;
  return MapChars(text, [&](char32_t code, size_t offset) {
    // Python lowers a sigma at the end of a word to the final form.
    const size_t next = offset + 2;
    const bool ends_word = code == 0x3A3 && after_letter &&
                           !(next < text.size() && IsAlpha(CharAt(text.view(), next)));
    after_letter = IsAlpha(code);
    return ends_word ? std::string("\xCF\x82") : LowerOf(code);
  });
}

Text Capitalize(const Text& text) {
  if (text.empty()) return text;
  const size_t first = CharSize(text.view(), 0);
  Text out = Upper(text.Slice(0, first));
  out.Append(Lower(text.Slice(first, text.size())));
  return out;
}

}  // namespace kvasir::jinja
