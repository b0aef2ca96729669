// BeginsWith: std::ranges::starts_with of C++23.
#pragma once

#include <algorithm>
#include <span>

namespace kvasir {

// Whether the first elements of `whole` are those of `beginning`.
template <typename T>
bool BeginsWith(std::span<const T> whole, std::span<const T> beginning) {
  return whole.size() >= beginning.size() &&
         std::ranges::equal(whole.first(beginning.size()), beginning);
}

}  // namespace kvasir
