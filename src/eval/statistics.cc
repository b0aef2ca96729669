#include "eval/statistics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/percentile.h"

namespace kvasir::eval {
namespace {

constexpr uint32_t kFirstDepth = 256;

struct Normaliser {
  size_t top = 0;  // the largest logit's place, the lowest of equals
  double lse = 0;
};

Normaliser Normalise(std::span<const float> row) {
  Normaliser of;
  of.top = static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
  const double max = row[of.top];
  double sum = 0;
  for (const float x : row) sum += std::exp(x - max);
  of.lse = max + std::log(sum);
  return of;
}

// Estimates mean and error of get(row).
template <typename Get>
Estimate EstimateOf(std::span<const RowFigures> rows, Get get) {
  Estimate estimate;
  const auto n = static_cast<double>(rows.size());
  for (const RowFigures& row : rows) estimate.value += get(row);
  estimate.value /= n;
  if (rows.size() < 2) return estimate;
  double squares = 0;
  for (const RowFigures& row : rows) squares += std::pow(get(row) - estimate.value, 2);
  estimate.error = std::sqrt(squares / (n - 1) / n);
  return estimate;
}

Estimate Exp(const Estimate& log) {
  const double value = std::exp(log.value);
  return {value, value * log.error};
}

}  // namespace

RowFigures CompareRows(std::span<const float> reference, std::span<const float> row, TokenId next,
                       uint32_t depth) {
  KV_CHECK(reference.size() == row.size() && static_cast<size_t>(next) < row.size());
  const Normaliser p = Normalise(reference), q = Normalise(row);
  double sum = 0;
  for (size_t v = 0; v < row.size(); ++v) {
    const double change = double{reference[v]} - double{row[v]};
    sum += std::exp(reference[v] - p.lse) * change;
  }
  RowFigures figures;
  figures.depth = depth;
  figures.same_top = p.top == q.top;
  figures.kl = std::max(0.0, sum - (p.lse - q.lse));
  const auto at = static_cast<size_t>(next);
  figures.reference_nll = p.lse - reference[at];
  figures.nll = q.lse - row[at];
  figures.probability_change = std::exp(-figures.nll) - std::exp(-figures.reference_nll);
  return figures;
}

Quality Summarise(std::span<const RowFigures> rows) {
  Quality quality;
  quality.tokens = rows.size();
  if (rows.empty()) return quality;
  const auto n = static_cast<double>(rows.size());
  quality.kl = EstimateOf(rows, [](const RowFigures& row) { return row.kl; });
  std::vector<double> sorted;
  sorted.reserve(rows.size());
  for (const RowFigures& row : rows) sorted.push_back(row.kl);
  std::sort(sorted.begin(), sorted.end());
  quality.kl_median = NearestRank(sorted, 0.5);
  quality.kl_p99 = NearestRank(sorted, 0.99);
  quality.kl_max = sorted.back();
  const double same = static_cast<double>(std::ranges::count_if(rows, &RowFigures::same_top)) / n;
  quality.same_top = {same, std::sqrt(same * (1 - same) / n)};
  quality.reference_perplexity =
      Exp(EstimateOf(rows, [](const RowFigures& row) { return row.reference_nll; }));
  quality.perplexity = Exp(EstimateOf(rows, [](const RowFigures& row) { return row.nll; }));
  quality.log_perplexity_ratio =
      EstimateOf(rows, [](const RowFigures& row) { return row.nll - row.reference_nll; });
  double squares = 0;
  for (const RowFigures& row : rows) squares += row.probability_change * row.probability_change;
  quality.probability_rms = std::sqrt(squares / n);
  return quality;
}

std::vector<DepthQuality> ByDepth(std::span<const RowFigures> rows) {
  std::vector<DepthQuality> depths;
  uint32_t deepest = 0;
  for (const RowFigures& row : rows) deepest = std::max(deepest, row.depth);
  std::vector<RowFigures> inside;
  for (uint64_t begin = 0, end = kFirstDepth; begin <= deepest; begin = end, end *= 2) {
    inside.clear();
    for (const RowFigures& row : rows) {
      if (row.depth >= begin && row.depth < end) inside.push_back(row);
    }
    if (inside.empty()) continue;
    depths.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), Summarise(inside)});
  }
  return depths;
}

}  // namespace kvasir::eval
