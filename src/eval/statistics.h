// Statistics of how a KV format changes the logits of a text: figures of each row, and their
// summary.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvasir/types.h"

namespace kvasir::eval {

// A mean and its standard error s / sqrt(n), which assumes independent tokens, as in
// llama-perplexity.
struct Estimate {
  double value = 0, error = 0;
};

// Compares one row of logits with the reference's row of the same position.
struct RowFigures {
  uint32_t depth = 0;  // tokens before this one in its window
  bool same_top = false;
  double kl = 0;                      // nats, >= 0
  double reference_nll = 0, nll = 0;  // -log of the probability of the token that follows
  double probability_change = 0;      // of that token: q - p
};

// Compares, with p = softmax(reference) and q = softmax(row):
//   kl = sum over v of p(v) (log p(v) - log q(v))
//      = sum over v of p(v) (reference[v] - row[v]) - (lse(reference) - lse(row)),
// where lse(x) = max + log(sum of exp(x - max)), all in double; rounding below 0 becomes 0, and
// equal rows give exactly 0. Of equal logits the lower id is the top one, as in greedy sampling.
// REQUIRES: both rows have the same size and are finite; next is an index of them.
RowFigures CompareRows(std::span<const float> reference, std::span<const float> row, TokenId next,
                       uint32_t depth);

// Summary of some rows. All zero without rows; errors are 0 with fewer than two rows.
struct Quality {
  uint64_t tokens = 0;
  Estimate kl;                                   // nats
  double kl_median = 0, kl_p99 = 0, kl_max = 0;  // nearest rank
  Estimate same_top;                             // share of rows, error sqrt(p (1 - p) / n)
  Estimate reference_perplexity, perplexity;     // exp(mean nll), error by the delta rule
  Estimate log_perplexity_ratio;                 // mean of nll - reference_nll: paired
  double probability_rms = 0;                    // of probability_change
};
Quality Summarise(std::span<const RowFigures> rows);

// Rows at depths [begin, end).
struct DepthQuality {
  uint32_t begin = 0, end = 0;
  Quality quality;
};
// Sorts by depth: [0, 256), [256, 512), [512, 1024), ... up to the deepest row; empty ranges are
// left out.
std::vector<DepthQuality> ByDepth(std::span<const RowFigures> rows);

}  // namespace kvasir::eval
