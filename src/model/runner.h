// Runner: one model on one Backend. Computes steps: rows of several sequences at once, reading and
// writing KV in paged blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/adapter_product.h"
#include "backend/step.h"
#include "backend/weight_choice.h"
#include "block/kv_layout.h"
#include "import/importer.h"
#include "kvasir/status.h"
#include "kvasir/types.h"
#include "model/weight_loader.h"
#include "simd/target.h"

namespace kvasir {

class ThreadPool;

struct RunnerOptions {
  uint32_t threads = 1;
  uint32_t max_rows = 512;       // of a step; of an encoder's: at least its longest source
  uint32_t max_logit_rows = 64;  // of a call to Logits
  uint32_t max_positions = 0;    // longest sequence; LayoutFor: 0 is the model's context
  uint32_t block_tokens = 16;
  KvFormats kv_format = KvFormat::kF16;
  std::vector<uint32_t> kv_skip_layers;  // their KV stays in f16; each below num_layers
  std::optional<WeightChoice> weights;   // absent: the formats of the file
  std::optional<ImageOptions> images;    // absent: keeps no image for the next start
  Target target = BestTarget();
  // Empty, or the processor of each thread. [0] is the caller's; the caller pins itself.
  std::vector<uint32_t> cpus;
  // Workers that it shares with other runners, of as many threads and these cpus; null: it has its
  // own. One runner at a time uses them.
  std::shared_ptr<ThreadPool> workers;
  AdapterLimits adapters = {};  // of StepSequence::adapters
};

// The bits of every result depend on weights, tokens and numerics version alone (docs/numerics.md).
// One thread at a time (it owns its workers; the calling thread computes too and must have called
// EnterComputeThread()). After Create, Step and Logits allocate nothing.
class Runner {
 public:
  // Bytes that Create will allocate, by the same arithmetic: exact.
  struct Plan {
    uint64_t weights_bytes;
    uint64_t token_bytes;   // of the weights: read by a step of one token
    uint64_t mapped_bytes;  // of the files: used in place
    uint64_t load_bytes;    // of the files: needed at once while weights are packed
    uint64_t scratch_bytes;
  };
  static Plan PlanFor(const ImportedModel& model, const RunnerOptions& options);
  // Returns the layers of the layout: the decoder's own attention of each layer, then, with an
  // encoder, the attention over the source of each.
  static KvLayout LayoutFor(const ModelConfig& config, const RunnerOptions& options);

  // Packs the weights. kCorruption names a tensor with a non-finite weight.
  static Result<std::unique_ptr<Runner>> Create(ImportedModel model, const RunnerOptions& options,
                                                const std::function<void(double share)>& progress);
  virtual ~Runner() = default;

  // Computes all rows; tokens [num rows]. KV of the new rows is in the blocks afterwards and
  // hidden(row) is valid until the next Step. kInvalidArgument for a token outside the vocabulary.
  // A row whose activations became non-finite has finite(row) == false: its KV must not be used.
  virtual Status Step(std::span<const StepSequence> sequences, std::span<const TokenId> tokens) = 0;
  // Reads whole sources, at most kMaxSources and max_rows tokens; tokens [num rows]. K and V of
  // cross attention of all decoder layers are in the `cross` blocks afterwards, and hidden(row) is
  // the encoder's output, valid until the next Step or Encode. kInvalidArgument for a token outside
  // the vocabulary. A source with source_finite(i) == false must not be used. The decoder's rows
  // name it by StepSequence::source_tokens. REQUIRES: config().encoder.
  static constexpr uint32_t kMaxSources = 32;
  virtual Status Encode(std::span<const StepSource> sources, std::span<const TokenId> tokens);
  virtual bool source_finite(uint32_t source) const;
  // Returns the final hidden state of a row, after the final norm: f32 [hidden_size]. This is what
  // a Cursor keeps.
  virtual std::span<const float> hidden(uint32_t row) const = 0;
  virtual bool finite(uint32_t row) const = 0;
  // Computes the output head: logits [hidden.size()][vocab_size] = head x hidden[i], f32.
  // hidden.size() <= max_logit_rows.
  virtual void Logits(std::span<const float* const> hidden, float* logits) = 0;

  // Zeroes what is left of earlier steps outside the blocks of KV: activations, and what the rows
  // read. No hidden(row) is valid afterwards.
  virtual void ZeroScratch() = 0;

  // Returns the bytes of K and V that attention has read since the start; what sequences of a step
  // share counts once.
  virtual uint64_t kv_read_bytes() const = 0;
  // Returns the bytes of weights that products have read since the start: of a step, each matrix
  // once, and of experts those that rows go to.
  virtual uint64_t weight_read_bytes() const = 0;
  virtual uint32_t threads() const = 0;
  // Calls fn(item) for each item in [0, items) on the runner's threads, of which the caller is one.
  // For work between the model's steps. REQUIRES: the items are independent.
  virtual void ForEach(uint32_t items, const std::function<void(uint32_t item)>& fn) = 0;

  virtual const ModelConfig& config() const = 0;
  virtual const ImportedModel& source() const = 0;
  virtual uint64_t weights_bytes() const = 0;  // allocated: equals the plan's
  // Returns the image whose pages are the packed weights; nullptr when they are in memory of this
  // process.
  virtual std::shared_ptr<const MappedFile> image() const = 0;
  virtual uint64_t scratch_bytes() const = 0;
};

}  // namespace kvasir
