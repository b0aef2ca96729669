// Regular expressions as expressions of a grammar.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"

namespace kvasir {

// What a regular expression is compared with.
enum class Extent : uint8_t {
  kWhole,     // the whole text; ^ and $ change nothing
  kAnywhere,  // any part of it, but where ^ and $ say otherwise
};

// How one character of a set is written; a set may be empty.
using WriteChars = std::function<ExpressionId(GrammarSource*, std::vector<CharRange>)>;

// Adds the texts that a pattern matches. It may have characters, `.` (all but line ends), classes,
// \d \w \s (ASCII), \D \W \S (the rest of ASCII), \t \n \r \f \v \0 \xHH \uHHHH \u{H}, groups,
// alternatives, * + ? {m} {m,} {m,n}, lazy ones too (they match the same texts). ^ begins and $
// ends an alternative of the whole. kInvalidArgument says what is wrong or not supported (\b, \p,
// \1, look-around), and at which character. O(size).
Result<ExpressionId> AddRegularExpression(std::string_view pattern, Extent extent,
                                          const WriteChars& write, GrammarSource* source);

}  // namespace kvasir
