#include "api/line_changes.h"

#include <algorithm>
#include <optional>

#include "api/equal_lines.h"

namespace kvasir {
namespace {

constexpr uint32_t kLeastEqual = 2;
constexpr uint32_t kEnough = 4;  // fewer equal lines may be chance

// How many lines of each text are skipped before both go on.
struct Skipped {
  uint32_t here = 0, there = 0;
};

std::optional<Skipped> FindEqual(std::span<const uint64_t> here, std::span<const uint64_t> there) {
  std::optional<Skipped> best;
  uint32_t most = kLeastEqual - 1;
  for (uint32_t sum = 1; sum <= 2 * kMostChangedLines; ++sum) {
    const uint32_t least = sum - std::min(sum, kMostChangedLines);
    for (uint32_t skipped = least; skipped <= std::min(sum, kMostChangedLines); ++skipped) {
      const uint32_t other = sum - skipped;
      if (skipped >= here.size() || other >= there.size()) continue;
      const auto next = here.subspan(skipped);
      const uint32_t equal =
          NumEqualLines(next.first(std::min<size_t>(next.size(), kEnough)), there.subspan(other));
      if (equal <= most) continue;
      most = equal;
      best = Skipped{skipped, other};
      if (most >= kEnough) return best;
    }
  }
  return best;
}

}  // namespace

std::vector<LineChange> ChangesBetween(std::span<const uint64_t> here,
                                       std::span<const uint64_t> there) {
  std::vector<LineChange> changes;
  uint32_t i = NumEqualLines(here, there), j = i;
  while (changes.size() < kMostChanges) {
    const auto skipped = FindEqual(here.subspan(i), there.subspan(j));
    if (!skipped) break;
    LineChange& change = changes.emplace_back();
    change.line = i;
    change.num_lines = skipped->here;
    i += skipped->here;
    j += skipped->there;
    const uint32_t equal = NumEqualLines(here.subspan(i), there.subspan(j));
    change.equal_begin = i;
    i += equal;
    j += equal;
    change.equal_end = i;
  }
  return changes;
}

}  // namespace kvasir
