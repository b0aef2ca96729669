// What two sequences have in common at their beginnings.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace kvasir {

// Returns the number of elements that both begin with.
template <typename T>
size_t SharedLength(std::span<const T> a, std::span<const T> b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// Tells whether the first elements of `whole` are those of `beginning`.
template <typename T>
bool BeginsWith(std::span<const T> whole, std::span<const T> beginning) {
  return whole.size() >= beginning.size() &&
         std::ranges::equal(whole.first(beginning.size()), beginning);
}

}  // namespace kvasir
