// Backend: the device that holds tensors and runs kernels. Model code uses kernels and pool memory
// only through it. The only one so far is the CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/adapter_product.h"
#include "backend/packed_weights.h"
#include "backend/step.h"
#include "block/kv_layout.h"
#include "simd/target.h"

namespace kvasir {

class ThreadPool;

// With fewer multiply-adds a phase runs on the calling thread, because sharing it costs more.
inline constexpr uint64_t kMinParallelWork = 1 << 20;

struct BackendOptions {
  uint32_t threads;
  uint32_t max_rows, max_logit_rows;
  uint32_t quant_columns;  // PackedPlan's
  uint32_t max_positions;
  uint32_t heads, kv_heads, head_dim;
  // Sizes of the experts; 0 in a model without them.
  uint32_t experts, chosen_experts, hidden_size, expert_ffn_size;
  KvLayout layout;
  // A table of rotations: HeadSteps::rope names one by its index.
  struct Rope {
    std::vector<double> frequencies;  // a pair of numbers each; the rest is not rotated
    double magnitude;                 // multiplies cos and sin
    // Instead of `frequencies`, as many, for StepSequence::long_rope; empty: no difference.
    std::vector<double> long_frequencies = {};
  };
  std::vector<Rope> ropes;
  float query_scale;
  float attention_softcap;  // AttentionKernels::Args::softcap
  // The encoder's shape: its attention sees whole sources (`layout`: one layer, reach kCross).
  struct Encoder {
    uint32_t heads, head_dim;
    float query_scale;
    KvLayout layout;
  };
  std::optional<Encoder> encoder;
  Target target;
  std::vector<uint32_t> cpus;                     // as in RunnerOptions
  std::shared_ptr<ThreadPool> workers = nullptr;  // as in RunnerOptions
  AdapterLimits adapters = {};
  uint32_t ffn_size = 0;  // of a dense layer
};

// What is done to Q and K of a row before K is packed.
struct HeadSteps {
  HeadNorm norm = HeadNorm::kNone;
  const float *q_norm = nullptr, *k_norm = nullptr;  // weights: [head_dim], or of all heads
  float eps = 0;
  std::optional<uint32_t> rope = 0;  // absent: not rotated
};

// All calls work on rows of f32, `stride` floats apart, and compute the bits of portable-1. One
// thread at a time; nothing allocates after construction.
class Backend {
 public:
  virtual ~Backend() = default;

  // Begins with the sequences of the step that the calls below belong to: prepares rotations and
  // work items. finite(row) is true until a number of the row is found that is not finite.
  virtual void Begin(std::span<const StepSequence> sequences, uint32_t rows) = 0;

  // Begins a step with rows of an encoder: whole sources, from position 0 on, with source_tokens ==
  // num_rows. RotateAndPack and Attend then are its: its heads, layer 0 of its layout.
  virtual void BeginEncoder(std::span<const StepSequence> sources, uint32_t rows) = 0;
  // Begins writing cross-attention K and V for these rows. Next call: PackKeyValues.
  virtual void BeginSources(std::span<const StepSequence> sources, uint32_t rows) = 0;

  virtual void Embed(const EmbeddingTable& table, std::span<const TokenId> tokens, float* y,
                     size_t stride) = 0;
  // x[row] *= factor, rows of n.
  virtual void Scale(float factor, uint32_t n, float* x, size_t stride) = 0;
  // x[row] += table[position of the row], rows of n; table: [positions][n].
  virtual void AddPositions(const float* table, uint32_t n, float* x, size_t stride) = 0;
  // y[row] = RMSNorm(x[row]) * w, rows of n; of kLayer, LayerNorm(x[row]) * w + its bias. y may be
  // x.
  virtual void Norm(NormKind kind, const PackedNorm& w, const float* x, size_t stride, uint32_t n,
                    float eps, uint32_t rows, float* y) = 0;
  // y[row] = factor * x[row] + y[row], one FMA a number, rows of n.
  virtual void AddScaled(float factor, const float* x, size_t stride, uint32_t n, uint32_t rows,
                         float* y) = 0;
  // x[row] = cap * tanh(x[row] / cap), rows of n.
  virtual void SoftCap(float cap, uint32_t n, uint32_t rows, float* x, size_t stride) = 0;
  // y[row] = w x[row] + bias; with kAdd, y[row] += that.
  enum class Into { kReplace, kAdd };
  virtual void MatMul(const PackedMatrix& w, const float* x, size_t x_stride, uint32_t rows,
                      float* y, size_t y_stride, Into into) = 0;
  // y[row] = act(w x[row] + bias), elementwise. y is not x.
  virtual void MatMulActivated(const PackedMatrix& w, Activation act, const float* x,
                               size_t x_stride, uint32_t rows, float* y, size_t y_stride) = 0;
  // y[row] = act(gate x[row]) * (up x[row]), elementwise; both with their bias, of one shape and
  // one run each. y is not x.
  virtual void MatMulGated(const PackedMatrix& gate, const PackedMatrix& up, Activation act,
                           const float* x, size_t x_stride, uint32_t rows, float* y,
                           size_t y_stride) = 0;
  // Computes MatMulGated, or MatMulActivated where `gate` has no runs, for rows of which some have
  // adapters: these add to the products before the activation. The other rows get the same bits as
  // from those calls. y is not x.
  virtual void MatMulAdapted(uint32_t layer, const PackedMatrix& gate, const PackedMatrix& up,
                             Activation act, const float* x, size_t x_stride, uint32_t rows,
                             float* y, size_t y_stride) = 0;
  // Returns whether an adapter of a row changes a product of this input (StepSequence::adapters).
  virtual bool Adapts(uint32_t layer, AdapterInput input) const = 0;
  // Adds what the rows' adapters make of x to the products of x.
  virtual void Adapt(uint32_t layer, AdapterInput input, const float* x, size_t x_stride,
                     const AdapterOutputs& out) = 0;
  // y[row] = the sum over the row's chosen experts, in their order from 0, of weight times
  // down(act(gate x[row]) * (up x[row])); y may be x. A row whose router gives a number that is
  // not finite gets 0, and finite(row) is false.
  virtual void Experts(const PackedFfn& w, Routing routing, Activation act, const float* x,
                       size_t stride, uint32_t rows, float* y) = 0;
  // Prepares rows [q | k | v]: norms q and k and rotates them for each row's position as `steps`
  // says, packs k and v into the blocks of `layer`, and multiplies q by query_scale. `out`:
  // Attend's, whose place holds a row's query as it is without rotation until Attend has asked runs
  // from elsewhere.
  virtual void RotateAndPack(uint32_t layer, const HeadSteps& steps, float* qkv, size_t stride,
                             float* out, size_t out_stride) = 0;
  // Does one half of it for attention over a source, whose K and V come from other rows than its
  // queries: rows [k | v], and rows [q | anything].
  virtual void PackKeyValues(uint32_t layer, float* kv, size_t stride) = 0;
  virtual void PrepareQueries(uint32_t layer, float* q, size_t stride) = 0;
  // out[row] = attention of the row's q over its sequence's blocks, as far as the layer's group
  // sees them: [heads * head_dim]. In a `cross` group that is the whole source, else no token after
  // the row's own.
  virtual void Attend(uint32_t layer, const float* qkv, size_t qkv_stride, float* out,
                      size_t out_stride) = 0;
  virtual void CheckFinite(const float* x, size_t stride, uint32_t n) = 0;
  virtual bool finite(uint32_t row) const = 0;
  virtual uint64_t kv_read_bytes() const = 0;  // read by Attend since the start
  // Returns bytes of packed matrices that products have read since the start: once a product, for
  // any number of rows.
  virtual uint64_t weight_read_bytes() const = 0;

  // Makes it ready for the next Begin, after the arena of its scratch memory was zeroed.
  virtual void OnScratchZeroed() = 0;

  // kExhausted: the system refused a thread.
  virtual Status status() const = 0;
  virtual uint32_t threads() const = 0;
  // Calls fn(item) for each item in [0, items) on the backend's threads; items must be independent.
  virtual void ForEach(uint32_t items, const std::function<void(uint32_t item)>& fn) = 0;
};

// Makes the backend of the CPU. Scratch memory comes from `arena`, which may be one that only
// counts.
std::unique_ptr<Backend> MakeCpuBackend(const BackendOptions& options, Arena& arena);
uint64_t CpuBackendScratchBytes(const BackendOptions& options);

}  // namespace kvasir
