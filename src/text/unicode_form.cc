#include "text/unicode_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

int CombiningClass(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Orders marks canonically: sorts runs of them by class. (utf8proc_decompose does it in quadratic
// time, which a prompt of a million accents would find.)
void OrderMarks(std::vector<utf8proc_int32_t>* chars) {
  auto begin = chars->begin();
  while (begin != chars->end()) {
    if (CombiningClass(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, chars->end(),
                                  [](utf8proc_int32_t c) { return CombiningClass(c) == 0; });
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    begin = end;
  }
}

}  // namespace

void AppendUnicodeForm(UnicodeForm form, std::string_view text, std::string* out) {
  const bool compat = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  const bool compose = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  const int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
  std::vector<utf8proc_int32_t> chars;
  chars.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const auto c = static_cast<utf8proc_int32_t>(NextChar(text, &pos));
    utf8proc_int32_t parts[32];  // the longest decomposition has 18
    int boundary = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(c, parts, 32, static_cast<utf8proc_option_t>(options), &boundary);
    KV_CHECK(count >= 0 && count <= 32);
    chars.insert(chars.end(), parts, parts + count);
  }
  OrderMarks(&chars);
  auto length = static_cast<utf8proc_ssize_t>(chars.size());
  if (compose) {
    length = utf8proc_normalize_utf32(
        chars.data(), length, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    KV_CHECK(length >= 0);
  }
  for (utf8proc_ssize_t i = 0; i < length; ++i) AppendUtf8(static_cast<char32_t>(chars[i]), out);
}

}  // namespace kvasir
