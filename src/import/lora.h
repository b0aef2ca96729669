// LoraAdapter: low-rank changes of a model's matrices (Hu et al., 2021), from a PEFT folder or a
// GGUF file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/mapped_file.h"
#include "import/model_config.h"
#include "import/tensor_view.h"
#include "kvasir/status.h"
#include "tensor/weight_format.h"

namespace kvasir {

// The matrices of a decoder layer that an adapter may change. Part of ReadLoraNumbers' digest:
// never renumber.
enum class LoraTarget : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr uint32_t kNumLoraTargets = 7;

// A or B of a change where it is stored: rows of a tensor, which may be those of a fused matrix.
struct LoraHalf {
  StoredTensor tensor;     // [rows, columns], of a type that weights may have
  uint64_t first_row = 0;  // of the tensor
  uint32_t head_dim = 0;   // rows of each head are interleaved (MatrixSource); 0: of none
};

// The change of one matrix: y += scale * B (A x).
struct LoraPair {
  uint32_t layer = 0;
  LoraTarget target = LoraTarget::kQ;
  uint32_t rank = 0, in = 0, out = 0;
  double scale = 1;  // of the file: alpha / rank, or what it says instead; not 0
  LoraHalf a = {};   // [rank][in]
  LoraHalf b = {};   // [out][rank], rows in the order of our matrices
};

// An adapter whose shapes are checked and whose numbers were not read yet.
struct LoraAdapter {
  std::vector<LoraPair> pairs;               // by layer, then target; at least one
  WeightFormat format = WeightFormat::kF32;  // kF16, kBf16: each number is such a one
  // What has the numbers: a file, or memory.
  std::shared_ptr<const MappedFile> file = nullptr;
  std::shared_ptr<const std::vector<float>> made = nullptr;

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
// applied with `scale` computes the same. `numbers`: of ReadLoraNumbers; `pair_scales`: of all
// pairs.
Digest LoraDigest(const Digest& numbers, std::span<const double> pair_scales, double scale);

// Opens an adapter for a model: a folder with adapter_config.json and adapter_model.safetensors
// (PEFT), or a GGUF file of the type adapter. Errors name the file, the key or tensor, what was
// found, and what would be right: kNotFound for a missing file, kUnsupported for what Kvasir does
// not compute (DoRA, biases, whole modules, experts, embeddings, the output head, encoder-decoder
// models), kInvalidArgument for an adapter of another model, kCorruption for wrong bytes.
// O(tensors).
Result<LoraAdapter> OpenLora(const std::filesystem::path& path, const ModelConfig& config);

enum class LoraMatrix : uint8_t { kA, kB };
// Gets some rows of a matrix of a pair, from row `first` on.
using TakeLoraRows = std::function<void(size_t pair, LoraMatrix matrix, uint64_t first,
                                        std::span<const float> rows)>;

// Reads all numbers once, from front to back: A, then B of each pair, kPanelOutputs rows at a time,
// so that beside what `take` keeps no more than LoraRowBytes is allocated. Returns SHA-256 over
// layers, targets, shapes and numbers, without scales: the same from either kind of file.
// kCorruption: a number is not finite; kModelChanged: the file was changed since it was opened.
// O(numbers).
Result<Digest> ReadLoraNumbers(const LoraAdapter& adapter, const TakeLoraRows& take);
uint64_t LoraRowBytes(const LoraAdapter& adapter);

// Makes an adapter of numbers that lie one after the other: A, then B of each pair. REQUIRES: the
// pairs have all but those, by layer, then target.
LoraAdapter LoraOf(std::vector<LoraPair> pairs, std::vector<float> numbers);
// Makes an adapter of all matrices that adapters may change, with random numbers from `seed`.
// REQUIRES: the model has no encoder. O(numbers).
LoraAdapter SyntheticLora(const ModelConfig& config, uint32_t rank, uint64_t seed);

}  // namespace kvasir
