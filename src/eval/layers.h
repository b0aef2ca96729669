// Which layers a lossy KV format hurts, and the shortest list of layers to keep in f16.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "eval/measure.h"

namespace kvasir::eval {

// The format in this layer alone, all others as --kv-skip-layers keeps them (f16). One layer alone,
// and not all but one: what a layer costs is then not hidden behind what the others cost.
struct LayerCost {
  uint32_t layer = 0;
  Estimate kl;  // nats, against f32
  Estimate same_top;
};

struct LayerStudy {
  std::vector<LayerCost> costs;  // by layer
  // Layers in order of cost, as many as it takes: the fewest of that order whose measured mean KL
  // is at most the bound. Empty: none are needed. Absent: only all of them would do.
  std::optional<std::vector<uint32_t>> skip_layers;
  std::optional<Measured> verified;  // that list, run; absent where it is empty or absent
};

// Measures the mean KL of a choice over the same text.
using MeasureChoices =
    std::function<Result<std::vector<Measured>>(std::span<const KvChoice> choices)>;

// `whole`: the format in all layers. Runs num_layers + O(log num_layers) choices: the list's length
// is found by halving, since keeping one more layer makes it better (where noise breaks that, the
// list is still one that was measured and meets the bound).
Result<LayerStudy> StudyLayers(const Measured& whole, uint32_t num_layers, double max_kl,
                               const MeasureChoices& measure);

}  // namespace kvasir::eval
