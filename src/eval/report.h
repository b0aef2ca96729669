// The results of `kvasir eval` as tables, JSON and a plot.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/layers.h"

namespace kvasir::eval {

struct FormatReport {
  Measured measured;
  std::optional<LayerStudy> layers;  // absent: not requested
};

struct EvalReport {
  std::string model, weights, content;  // of its ModelCard
  uint64_t reference_bytes_per_token = 0;
  std::string text;                                     // the source of the text
  uint64_t tokens = 0, windows = 0, window_tokens = 0;  // scored; how many; of the longest
  double max_kl = 0;
  std::vector<Probe> probes;
  std::vector<Answer> reference_answers;  // as many as probes
  std::vector<FormatReport> formats;

  // Returns the row of each format, followed by the row of its recommended list if it has one.
  std::vector<const Measured*> rows() const;
};

// Counts for probes of one kind. `changed`: answers whose text differs from f32's.
struct RecallCount {
  std::string kind;  // "all" for all
  uint64_t probes = 0, right = 0, changed = 0;
  uint64_t lost = 0, gained = 0;  // right with f32 and wrong here; the reverse
};
// Counts "all" first, then kinds in the order of the file.
std::vector<RecallCount> CountRecall(const EvalReport& report, const std::vector<Answer>& answers);

// Aligns columns to their widest cell: the first one left, the others right.
std::string Aligned(const std::vector<std::vector<std::string>>& rows);
std::string PlusMinus(const Estimate& estimate);  // "0.0012 +- 0.0001"
std::string Percent(const Estimate& share);       // "99.10% +- 0.05"

std::string TablesOf(const EvalReport& report);
nlohmann::ordered_json JsonOf(const EvalReport& report);
// Draws a self-contained picture: mean KL by depth, a line per format with its standard error, and,
// if layers were measured, the mean KL of each layer alone. Logarithmic; without scripts and fonts.
std::string SvgOf(const EvalReport& report);

}  // namespace kvasir::eval
