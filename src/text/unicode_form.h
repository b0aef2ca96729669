// Unicode normalisation forms (UAX 15).
#pragma once

#include <string>
#include <string_view>

namespace kvasir {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// Appends the form of text, well-formed UTF-8. O(n log n), also for long runs of marks.
void AppendUnicodeForm(UnicodeForm form, std::string_view text, std::string* out);

}  // namespace kvasir
