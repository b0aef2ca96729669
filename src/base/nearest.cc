#include "base/nearest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace kvasir {
namespace {

constexpr size_t kMostChanges = 2;

size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::optional<std::string> Nearest(std::string_view word, std::span<const std::string> known) {
  const auto first_letter = [](std::string_view text) {
    const size_t at = text.find_first_not_of('-');
    return at == text.npos ? '\0' : text[at];
  };
  std::optional<std::string> nearest;
  size_t least = std::min(kMostChanges + 1, word.size());
  for (const std::string& one : known) {
    if (one.size() + kMostChanges < word.size() || word.size() + kMostChanges < one.size())
      continue;
    const size_t distance = Distance(word, one);
    if (distance >= least || (distance > 1 && first_letter(word) != first_letter(one))) continue;
    least = distance;
    nearest = one;
  }
  return nearest;
}

}  // namespace kvasir
