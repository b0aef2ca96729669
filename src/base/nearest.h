// The nearest of several words, for "did you mean".
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvasir {

// Returns the word of `known` that most resembles `word`: at most two letters must be changed,
// inserted or taken out (Levenshtein), fewer than it has, and only one where the first letters
// differ: --port is not --lora. Absent: none is so near. O(letters^2) a word.
std::optional<std::string> Nearest(std::string_view word, std::span<const std::string> known);

// Returns the word of `known` that `word` may be a short or other form of, each part between dashes
// for itself: its part has the letters of the other's in their order, or the same first half, and
// at least three letters: --ctx-shift is --context-shift, --retain is --retention. Of several the
// shortest; absent: none.
std::optional<std::string> NearestByParts(std::string_view word,
                                          std::span<const std::string> known);

}  // namespace kvasir
