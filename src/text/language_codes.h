// The languages of translation models, in the order of their ids, and ISO 639's codes of them.
#pragma once

#include <span>
#include <string_view>

namespace kvasir {

std::span<const std::string_view> M2mLanguages();    // "en"; 100 of them
std::span<const std::string_view> Wmt21Languages();  // "en"; 8
std::span<const std::string_view> NllbLanguages();   // "eng_Latn"; 202

// Returns the codes that mean one language, separated by spaces: ISO 639-1's first, then 639-3's,
// then those of the variants that models have for it. "": no language has the code. O(languages).
std::string_view CodesLike(std::string_view code);

}  // namespace kvasir
