// Finds which layers a lossy KV format harms most, and the shortest list of layers to keep in f16.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "eval/measure.h"

namespace kvasir::eval {

// The cost of the format in only this layer, with all others in f16, as --kv-skip-layers keeps
// them. So the cost of a layer is not hidden by the cost of the others.
struct LayerCost {
  uint32_t layer = 0;
  Estimate kl;  // nats, against f32
  Estimate same_top;
};

struct LayerStudy {
  std::vector<LayerCost> costs;  // by layer
  // The most expensive layers, as few as are needed for a measured mean KL of at most the bound.
  // Empty: no layers are needed. Absent: only all layers meet the bound.
  std::optional<std::vector<uint32_t>> skip_layers;
  std::optional<Measured>
      verified;  // the measurement of that list; absent when it is empty or absent
};

// Measures the mean KL of a choice over the same text.
using MeasureChoices =
    std::function<Result<std::vector<Measured>>(std::span<const KvChoice> choices)>;

// `whole`: the format in all layers. Runs num_layers + O(log num_layers) choices: a binary search
// finds the list's length, because each further layer in f16 improves the result. (If noise breaks
// that, the list was still measured and meets the bound.)
Result<LayerStudy> StudyLayers(const Measured& whole, uint32_t num_layers, double max_kl,
                               const MeasureChoices& measure);

}  // namespace kvasir::eval
