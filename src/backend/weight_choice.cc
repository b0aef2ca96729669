#include "backend/weight_choice.h"

#include <algorithm>
#include <map>

#include "base/ascii.h"
#include "import/architecture.h"

namespace kvasir {
std::optional<WeightChoice> FindWeightChoice(std::string_view name) {
  const auto* found = std::ranges::find(kWeightChoices, name, &WeightChoice::name);
  if (found == std::end(kWeightChoices)) return std::nullopt;
  return *found;
}

std::string WeightsName(WeightFormat format) { return LowerAscii(LayoutOf(format).name); }

WeightFormat MainFormat(const ImportedModel& model) {
  std::map<WeightFormat, uint64_t> numbers;
  ForEachLayerMatrix(model,
                     [&](const TensorView& view) { numbers[view.dtype] += view.num_elements(); });
  const auto most =
      std::ranges::max_element(numbers, {}, [](const auto& of_format) { return of_format.second; });
  return most->first;
}

bool HasQuantised(const ImportedModel& model) {
  bool found = IsQuantised(model.embedding.dtype) ||
               (model.lm_head && IsQuantised(model.lm_head->view.dtype));
  ForEachLayerMatrix(model, [&](const TensorView& view) { found |= IsQuantised(view.dtype); });
  return found;
}

Digest ChosenDigest(const Digest& weights, const std::optional<WeightChoice>& choice) {
  if (!choice) return weights;
  return Sha256()
      .Update("kvasir quantised weights 1\n")
      .Update(std::as_bytes(std::span(weights)))
      .Update(choice->name)
      .Finish();
}

}  // namespace kvasir
