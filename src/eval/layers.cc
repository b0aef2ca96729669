#include "eval/layers.h"

#include <algorithm>
#include <numeric>

#include "base/result.h"

namespace kvasir::eval {

Result<LayerStudy> StudyLayers(const Measured& whole, uint32_t num_layers, double max_kl,
                               const MeasureChoices& measure) {
  const std::string& format = whole.choice.format;
  std::vector<KvChoice> alone(num_layers, KvChoice{format, {}});
  for (uint32_t layer = 0; layer < num_layers; ++layer) {
    for (uint32_t other = 0; other < num_layers; ++other) {
      if (other != layer) alone[layer].skip_layers.push_back(other);
    }
  }
  KV_ASSIGN(const std::vector<Measured> measured, measure(alone));
  LayerStudy study;
  for (uint32_t layer = 0; layer < num_layers; ++layer) {
    study.costs.push_back({layer, measured[layer].quality.kl, measured[layer].quality.same_top});
  }
  if (whole.quality.kl.value <= max_kl) {
    study.skip_layers.emplace();
    return study;
  }
  std::vector<uint32_t> order(num_layers);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&study](uint32_t a, uint32_t b) {
    return study.costs[a].kl.value > study.costs[b].kl.value;
  });
  // `few` layers are too few; `enough` are enough, or all.
  uint32_t few = 0, enough = num_layers;
  while (enough - few > 1) {
    const uint32_t count = few + (enough - few) / 2;
    KvChoice choice{format, {order.begin(), order.begin() + count}};
    std::ranges::sort(choice.skip_layers);
    KV_ASSIGN(std::vector<Measured> one, measure(std::span(&choice, 1)));
    if (one.front().quality.kl.value > max_kl) {
      few = count;
      continue;
    }
    enough = count;
    study.skip_layers = choice.skip_layers;
    study.verified = std::move(one.front());
  }
  return study;
}

}  // namespace kvasir::eval
