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

// Returns what is between dashes.
std::vector<std::string_view> PartsOf(std::string_view word) {
  std::vector<std::string_view> parts;
  while (!word.empty()) {
    const size_t end = std::min(word.find('-'), word.size());
    if (end > 0) parts.push_back(word.substr(0, end));
    word.remove_prefix(std::min(end + 1, word.size()));
  }
  return parts;
}

// Tells whether `part` may be a short or another form of `whole`.
bool AreForms(std::string_view part, std::string_view whole) {
  constexpr size_t kLeast = 3;
  if (part == whole) return true;
  const auto same = static_cast<size_t>(std::ranges::mismatch(part, whole).in1 - part.begin());
  if (same == 0 || part.size() < kLeast) return false;
  if (same >= kLeast && 2 * same >= part.size()) return true;
  size_t found = 0;
  for (const char c : whole) found += found < part.size() && part[found] == c ? 1 : 0;
  return found == part.size();
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

std::optional<std::string> NearestByParts(std::string_view word,
                                          std::span<const std::string> known) {
  const std::vector<std::string_view> parts = PartsOf(word);
  std::optional<std::string> nearest;
  for (const std::string& one : known) {
    if (nearest && nearest->size() <= one.size()) continue;
    if (std::ranges::equal(parts, PartsOf(one), AreForms)) nearest = one;
  }
  return nearest;
}

}  // namespace kvasir
