#include "sampling/infill_cut.h"

#include <array>
#include <utility>

#include "base/check.h"
#include "kvasir/sampling_ranges.h"

namespace kvasir {
namespace {

// Shares of one candidate below these are too uncertain.
constexpr double kLeastShare = 0.2;
constexpr double kEndsFactor = 3;

struct Continuations {
  std::array<double, kMaxInfillCandidates> share;
  std::array<std::string_view, kMaxInfillCandidates> text;
  std::array<bool, kMaxInfillCandidates> ends, gone;
};

void MergeBeginnings(Continuations& all, size_t num) {
  for (size_t i = 0; i < num; ++i) {
    for (size_t j = 0; j < num && !all.gone[i]; ++j) {
      if (i == j || all.gone[j] || all.text[i].empty() || !all.text[j].starts_with(all.text[i])) {
        continue;
      }
      const bool is_likelier = all.share[j] > all.share[i];
      const size_t into = is_likelier ? j : i, from = is_likelier ? i : j;
      all.share[into] += std::exchange(all.share[from], 0);
      all.gone[from] = true;
    }
  }
}

// Marks others than ends whose share is below `least`. Returns how many others are left.
size_t DropBelow(double least, Continuations& all, size_t num) {
  size_t others = 0;
  for (size_t i = 0; i < num; ++i) {
    if (all.gone[i] || all.ends[i]) continue;
    all.gone[i] = all.share[i] < least;
    others += !all.gone[i];
  }
  return others;
}

}  // namespace

size_t CutForInfill(std::span<Candidate> candidates, const InfillWords& words) {
  const size_t num = candidates.size();
  KV_CHECK(num >= 1 && num <= kMaxInfillCandidates);
  Continuations all{};
  double sum = 0, ends = 0;
  for (const Candidate& candidate : candidates) sum += candidate.weight;
  for (size_t i = 0; i < num; ++i) {
    all.share[i] = candidates[i].weight / sum;
    all.ends[i] = words.ends(candidates[i].id);
    if (all.ends[i]) {
      ends += all.share[i];
    } else {
      all.text[i] = words.text(candidates[i].id);
    }
  }
  if (kEndsFactor * ends * static_cast<double>(num) > 1 - ends) {
    for (size_t i = 0; i < num; ++i) all.gone[i] = !all.ends[i];
  } else {
    MergeBeginnings(all, num);
    const size_t others = DropBelow(kLeastShare, all, num);
    if (others == 0) {
      if (words.end) candidates[0].id = *words.end;
      return 1;
    }
    double left = 0;
    for (size_t i = 0; i < num; ++i) left += all.gone[i] ? 0 : all.share[i];
    DropBelow(left / static_cast<double>(others + 1), all, num);
  }
  size_t kept = 0;
  for (size_t i = 0; i < num; ++i) {
    if (!all.gone[i]) candidates[kept++] = candidates[i];
  }
  return kept;
}

}  // namespace kvasir
