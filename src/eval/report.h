// What `kvasir eval` found, as tables, JSON and a plot.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/layers.h"

namespace kvasir::eval {

struct FormatReport {
  Measured measured;
  std::optional<LayerStudy> layers;  // absent: not asked for
};

struct EvalReport {
  std::string model, weights, content;  // of its ModelCard
  uint64_t reference_bytes_per_token = 0;
  std::string text;                                     // what was read
  uint64_t tokens = 0, windows = 0, window_tokens = 0;  // scored; how many; of the longest
  double max_kl = 0;
  std::vector<Probe> probes;
  std::vector<Answer> reference_answers;  // as many as probes
  std::vector<FormatReport> formats;

  // Each format's row, and after it that of its recommended list where there is one.
  std::vector<const Measured*> rows() const;
};

// Of the probes of one kind. `changed`: answers that differ from f32's in any letter.
struct RecallCount {
  std::string kind;  // "all" for all
  uint64_t probes = 0, right = 0, changed = 0;
  uint64_t lost = 0, gained = 0;  // right with f32 and wrong here; the reverse
};
// "all" first, then kinds in the order of the file.
std::vector<RecallCount> CountRecall(const EvalReport& report, const std::vector<Answer>& answers);

std::string TablesOf(const EvalReport& report);
nlohmann::ordered_json JsonOf(const EvalReport& report);
// A self-contained picture: mean KL by depth, a line per format with its standard error, and, where
// layers were measured, the mean KL of each layer alone. Logarithmic; no scripts, no fonts of its
// own.
std::string SvgOf(const EvalReport& report);

}  // namespace kvasir::eval
