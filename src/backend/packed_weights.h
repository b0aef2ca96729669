// PackedWeights: a model's matrices repacked into panels of 16 outputs, norms and biases widened,
// in one arena whose size follows from the shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/weight_choice.h"
#include "base/arena.h"
#include "base/thread_pool.h"
#include "import/importer.h"
#include "kvasir/status.h"
#include "tensor/kernels.h"

namespace kvasir {

// Outputs [first_output, first_output + outputs) of a matrix, all in one format:
// panels [ceil(outputs / 16)], PanelBytes each; missing outputs of the last are zero.
struct PackedRun {
  const std::byte* panels = nullptr;
  WeightFormat format = WeightFormat::kF32;
  uint32_t first_output = 0, outputs = 0;
};

// [outputs, k]. Stacked matrices (q, k and v) may be stored in different formats: then each
// keeps its numbers in a separate run, which begins with a new panel.
struct PackedMatrix {
  PackedRun run[3];
  uint32_t num_runs = 0;
  const float* bias = nullptr;  // [outputs]; nullptr: no bias
  uint32_t outputs = 0, k = 0;

  std::span<const PackedRun> runs() const { return {run, num_runs}; }
};

// Rows of the embedding: in place in the mapped file, or in a packed matrix (the output head when
// they are tied; a quantised embedding is packed separately).
struct EmbeddingTable {
  const std::byte* rows = nullptr;  // nullptr: packed
  WeightFormat format = WeightFormat::kF32;
  uint32_t hidden = 0, vocab = 0;
  PackedMatrix packed;
};

struct PackedNorm {
  const float* weight = nullptr;
  const float* bias = nullptr;  // of a LayerNorm
};

struct PackedAttention {
  PackedNorm norm, post_norm;                        // those that LayerSpec::norm_place names
  PackedMatrix qkv;                                  // rows of q, k and v one after another
  const float *q_norm = nullptr, *k_norm = nullptr;  // as LayerSpec::head_norm says
  PackedMatrix o;
};

// Attention over the source: its queries come from the decoder's rows, K and V from the encoder's
// output.
struct PackedCross {
  PackedNorm norm;
  PackedMatrix q, kv, o;  // rows of k and v one after another
};

struct PackedExpert {
  PackedMatrix gate, up, down;  // of one run each
};

struct PackedFfn {
  PackedNorm norm, post_norm;
  PackedMatrix gate, up, down;        // no gate in FfnKind::kPlain; none in kExperts
  PackedMatrix router;                // of kExperts: [experts, hidden], as the file stores it
  std::vector<PackedExpert> experts;  // of kExperts
};

struct PackedLayer {
  LayerSpec spec;
  PackedAttention attention;
  PackedCross cross;  // where LayerSpec::cross says so
  PackedFfn ffn;
};

struct PackedWeights {
  EmbeddingTable embedding, source_embedding;  // source_embedding: the encoder's
  std::vector<PackedLayer> layers;
  PackedNorm final_norm;
  // The encoder of an encoder-decoder model.
  std::vector<PackedLayer> encoder_layers;
  PackedNorm encoder_norm;
  // [max_positions][hidden], stored or sinusoids; nullptr: none. source_positions: the encoder's.
  const float *positions = nullptr, *source_positions = nullptr;
  PackedMatrix head;
  uint32_t quant_columns = 0;               // PackedPlan's
  std::shared_ptr<const MappedFile> image;  // set if the arena is over an image's bytes
  Arena arena;
};

struct PackedPlan {
  uint64_t arena_bytes = 0;    // what Pack allocates, exactly
  uint64_t token_bytes = 0;    // read by a step of one token: the arena without a table's rows and
                               // without what no such step reads: experts that are not chosen,
                               // the encoder, and what K and V of sources are made by
  uint64_t mapped_bytes = 0;   // used in place in the files
  uint32_t quant_columns = 0;  // of the widest quantised matrix; 0 without one
  uint64_t load_bytes = 0;     // limit of the files' pages that Pack needs at once
};
PackedPlan PlanPacked(const ImportedModel& model, const std::optional<WeightChoice>& choice);

// Returns packed weights over memory that Pack has filled before; computes and checks nothing.
// REQUIRES: arena.size() == PlanPacked(model, choice).arena_bytes.
PackedWeights Adopt(const ImportedModel& model, const std::optional<WeightChoice>& choice,
                    Arena arena);

// Packs matrices as they are stored, or quantised as `choice` says. Drops pages of the files as
// soon as they are packed. kCorruption names a tensor with a number that is not finite,
// kInvalidArgument one too large to be quantised. O(weights), on the pool's threads.
// REQUIRES: no choice for a model with quantised tensors.
Result<PackedWeights> Pack(const ImportedModel& model, const std::optional<WeightChoice>& choice,
                           ThreadPool& pool, const std::function<void(double share)>& progress);

}  // namespace kvasir
