// PackedWeights: a model's matrices repacked into panels of 16 outputs, norms and biases widened,
// in one arena whose size follows from the shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/arena.h"
#include "kvasir/status.h"
#include "model/importer.h"
#include "tensor/kernels.h"

namespace kvasir {

// [outputs, k], stored as panels [outputs / 16][k][16]; missing outputs of the last panel are zero.
struct PackedMatrix {
  const std::byte* panels = nullptr;
  const float* bias = nullptr;  // [outputs] or none
  WeightFormat format = WeightFormat::kF32;
  uint32_t outputs = 0, k = 0;
};

// Rows of the embedding, used in place in the mapped file.
struct EmbeddingTable {
  const std::byte* rows = nullptr;
  WeightFormat format = WeightFormat::kF32;
  uint32_t hidden = 0, vocab = 0;
};

struct PackedLayer {
  const float* attention_norm;
  PackedMatrix qkv;  // rows of q, k and v one after another
  PackedMatrix o;
  const float* ffn_norm;
  PackedMatrix gate_up;  // rows of gate, then of up
  PackedMatrix down;
};

struct PackedWeights {
  EmbeddingTable embedding;
  std::vector<PackedLayer> layers;
  const float* final_norm = nullptr;
  PackedMatrix head;
  Arena arena;
};

// Bytes of the arena: the sum that Pack allocates, exactly.
uint64_t PackedBytes(const ImportedModel& model);

// kCorruption names a tensor with a number that is not finite. O(weights).
Result<PackedWeights> Pack(const ImportedModel& model,
                           const std::function<void(double share)>& progress);

}  // namespace kvasir
