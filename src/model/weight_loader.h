// Loading of a model's packed weights: from its image where there is one, else by packing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "backend/packed_weights.h"
#include "base/digest.h"
#include "base/secret.h"

namespace kvasir {

struct ImageOptions {
  std::filesystem::path folder;
  uint64_t cap_bytes = 0;
  Secret secret{};
  Digest weights{};  // ChosenDigest
  // A sentence for the user: an image that was not trusted, or could not be kept. May be empty.
  std::function<void(const std::string&)> warn;
};

// Packs the weights, or maps the image of an earlier start. An image that is damaged is told and
// made anew; one that cannot be written costs time, never the start. Errors as Pack.
Result<PackedWeights> LoadWeights(const ImportedModel& model,
                                  const std::optional<WeightChoice>& choice, uint32_t threads,
                                  const std::optional<ImageOptions>& images,
                                  const std::function<void(double share)>& progress);

}  // namespace kvasir
