// WeightChoice: the formats that --weights quantises a model to.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/digest.h"
#include "tensor/weight_format.h"

namespace kvasir {

struct ImportedModel;

// Embedding and output head have a separate format, because their errors reach every logit.
struct WeightChoice {
  std::string_view name;
  WeightFormat layers, tables;
};

inline constexpr WeightChoice kWeightChoices[] = {
    {"i8", WeightFormat::kI8, WeightFormat::kI8},
    {"i4", WeightFormat::kQ4_1, WeightFormat::kI8},
    {"q8_0", WeightFormat::kQ8_0, WeightFormat::kQ8_0},
    {"q4_0", WeightFormat::kQ4_0, WeightFormat::kQ8_0},
};
std::optional<WeightChoice> FindWeightChoice(std::string_view name);

std::string WeightsName(WeightFormat format);  // "bf16", "q4_k"
// Returns the type of most of the numbers of a model's layers: a file may mix them.
WeightFormat MainFormat(const ImportedModel& model);
// Tells whether any matrix of the model is stored quantised.
bool HasQuantised(const ImportedModel& model);

// Returns the digest of the numbers used for computing: `weights` (WeightsDigest), or those that
// `choice` makes of them. Includes the version of the quantisers.
Digest ChosenDigest(const Digest& weights, const std::optional<WeightChoice>& choice);

}  // namespace kvasir
