// LoraAdapter: low-rank changes of a model's matrices (Hu et al., 2021), from a PEFT folder or a
// GGUF file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/digest.h"
#include "import/model_config.h"
#include "kvasir/status.h"
#include "tensor/weight_format.h"

namespace kvasir {

// The matrices of a decoder layer that an adapter may change. Part of LoraAdapter::numbers: never
// renumber.
enum class LoraTarget : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr uint32_t kNumLoraTargets = 7;

// The change of one matrix: y += scale * B (A x).
struct LoraPair {
  uint32_t layer = 0;
  LoraTarget target = LoraTarget::kQ;
  uint32_t rank = 0, in = 0, out = 0;
  double scale = 1;      // of the file: alpha / rank, or what it says instead; not 0
  std::vector<float> a;  // [rank][in]
  std::vector<float> b;  // [out][rank], rows in the order of our matrices
};

// An adapter as it is used. Its numbers are copies: later changes of its files do nothing.
struct LoraAdapter {
  std::vector<LoraPair> pairs;               // by layer, then target; at least one
  WeightFormat format = WeightFormat::kF32;  // kF16, kBf16: each number is such a one
  // SHA-256 over layers, targets, shapes and numbers, without scales: the same from either kind of
  // file.
  Digest numbers{};

  uint32_t max_rank() const;
};

// The largest rank that is believed.
inline constexpr uint32_t kMaxLoraRank = 1 << 12;

// Returns the factor of a pair whose file has `pair_scale`, in an adapter that is applied with
// `scale`: the product, rounded once.
inline float LoraFactor(double pair_scale, double scale) {
  return static_cast<float>(pair_scale * scale);
}
// Returns SHA-256 over the numbers and the factor of each pair: equal exactly when the adapter
// applied with `scale` computes the same.
Digest LoraDigest(const LoraAdapter& adapter, double scale);

// Reads an adapter for a model: a folder with adapter_config.json and adapter_model.safetensors
// (PEFT), or a GGUF file of the type adapter. Errors name the file, the key or tensor, what was
// found, and what would be right: kNotFound for a missing file, kUnsupported for what Kvasir does
// not compute (DoRA, biases, whole modules, experts, embeddings, the output head, encoder-decoder
// models), kInvalidArgument for an adapter of another model, kCorruption for wrong bytes and
// numbers that are not finite. O(bytes).
Result<LoraAdapter> ReadLora(const std::filesystem::path& path, const ModelConfig& config);

// Makes an adapter of all matrices that adapters may change, with random numbers from `seed`.
// REQUIRES: the model has no encoder. O(numbers).
LoraAdapter SyntheticLora(const ModelConfig& config, uint32_t rank, uint64_t seed);

}  // namespace kvasir
