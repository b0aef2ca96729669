// Which lines of a text changed since another text had them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir {

// Lines that stand where another text has others, or none, and the equal lines after them.
struct LineChange {
  uint32_t line = 0;       // the first of them; where lines were removed, the one after these
  uint32_t num_lines = 0;  // 0: lines were removed
  // Lines [equal_begin, equal_end) are those of the other text too, up to the next change.
  uint32_t equal_begin = 0, equal_end = 0;

  bool operator==(const LineChange&) const = default;
};

inline constexpr uint32_t kMostChanges = 4;       // that are looked for
inline constexpr uint32_t kMostChangedLines = 8;  // of each text in one change

// Compares digests of lines, from the beginning of both texts up to a change after which the next
// kMostChangedLines lines of neither go on as the other does. At a change, the texts go on after
// the fewest lines where 4 lines are equal, or else where most are, at least 2. O(lines).
std::vector<LineChange> ChangesBetween(std::span<const uint64_t> here,
                                       std::span<const uint64_t> there);

}  // namespace kvasir
