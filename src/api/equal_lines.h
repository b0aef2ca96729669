// NumEqualLines: how far two texts are equal.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvasir {

// Counts the lines, given as digests, that both texts begin with. Compares 64 at once: a table of
// chats has half a million. O(lines).
inline uint32_t NumEqualLines(std::span<const uint64_t> one, std::span<const uint64_t> other) {
  constexpr size_t kAtOnce = 64;
  const size_t most = std::min(one.size(), other.size());
  size_t equal = 0;
  while (most - equal >= kAtOnce &&
         std::memcmp(one.data() + equal, other.data() + equal, kAtOnce * sizeof(one[0])) == 0) {
    equal += kAtOnce;
  }
  while (equal < most && one[equal] == other[equal]) ++equal;
  return static_cast<uint32_t>(equal);
}

}  // namespace kvasir
