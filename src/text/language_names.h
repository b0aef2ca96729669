// English names of the languages of translation models.
#pragma once

#include <string>

#include "text/languages.h"

namespace kvasir {

// Returns "French"; "Kashmiri (Devanagari)" where another language of the model comes first with
// its ISO code; the code itself where no name is known. O(names).
std::string EnglishName(const Language& language);

}  // namespace kvasir
