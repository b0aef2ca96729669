// Loads a model's packed weights: from its image if there is one, else by packing them.
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
  // Gets a sentence for the user when an image was not trusted or could not be kept. May be empty.
  std::function<void(const std::string&)> warn;
};

// Packs the weights, or maps the image of an earlier start. Reports a damaged image and makes it
// again. An image that cannot be written costs time, but the start goes on. Errors as Pack.
Result<PackedWeights> LoadWeights(const ImportedModel& model,
                                  const std::optional<WeightChoice>& choice, uint32_t threads,
                                  const std::optional<ImageOptions>& images,
                                  const std::function<void(double share)>& progress);

}  // namespace kvasir
