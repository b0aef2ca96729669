// AdapterProduct: what adapters add to the products of a step's rows. Base rows and rows of any
// adapters share the step, and each row's bits depend on its own adapters alone.
#pragma once

#include <cstdint>
#include <span>

#include "backend/packed_adapter.h"
#include "backend/step.h"
#include "base/arena.h"
#include "base/thread_pool.h"
#include "tensor/kernels.h"

namespace kvasir {

// How large the adapters of a step may be. 0: a step has none.
struct AdapterLimits {
  uint32_t max_rank = 0;
  uint32_t max_adapters = 0;  // of a sequence
  bool operator==(const AdapterLimits&) const = default;
};

// Where the matrices of one input write: PackedInput::pairs[i] adds to rows [i].y, `stride` floats
// apart.
struct AdapterOutput {
  float* y = nullptr;
  size_t stride = 0;
};
using AdapterOutputs = std::array<AdapterOutput, kMaxAdapterOutputs>;

// For each adapter in the order of digests: t = A x, t *= factor, y += B t, in f32. Each output is
// one lane, which sums in the order of K; rows with the same adapter read it once. One call at a
// time; nothing allocates after construction.
class AdapterProduct {
 public:
  struct Options {
    Target target;
    uint32_t max_rows;
    AdapterLimits limits;
  };
  // Rows [first_row, first_row + rows) of a step, with one of their adapters.
  struct Piece {
    const AppliedAdapter* applied;
    uint32_t first_row, rows;
    uint32_t first_slot;  // of t
  };
  // Scratch memory; the same code counts it and allocates it. A slot is a row with one of its
  // adapters: [max_rows * max_adapters].
  struct Scratch {
    Scratch(const Options& options, Arena& arena);
    size_t t_stride;
    float* t;       // [slot]: what A of all matrices of an input gives
    Piece* pieces;  // [slot]
  };
  // `pool` must outlive this.
  AdapterProduct(const Options& options, Arena& arena, ThreadPool& pool);

  // Begins the step that the calls below belong to. REQUIRES: the lists of its sequences ascend by
  // digest, and keep to the limits; they and their adapters stay until the next call.
  void Begin(std::span<const StepSequence> sequences);
  // Returns whether a row's adapter changes a matrix of this input.
  bool Changes(uint32_t layer, AdapterInput input) const;
  // Adds to the products of `x`.
  void Add(uint32_t layer, AdapterInput input, const float* x, size_t x_stride,
           const AdapterOutputs& out);
  uint64_t read_bytes() const { return read_bytes_; }  // of adapters, since the start

 private:
  void Cut();
  void Shrink(const PackedInput& packed, const Piece& piece, const float* x, size_t x_stride);
  void Expand(uint32_t layer, AdapterInput input, uint32_t index, uint32_t panel,
              const AdapterOutputs& out);
  template <typename Fn>
  void ForItems(uint32_t items, uint64_t work, Fn&& fn);
  std::span<const Piece> pieces() const { return {scratch_.pieces, num_pieces_}; }
  static const PackedInput& Of(const Piece& piece, uint32_t layer, AdapterInput input) {
    return piece.applied->adapter->At(layer, input);
  }

  const Options o_;
  const TensorKernels& kernels_;
  ThreadPool& pool_;
  const Scratch scratch_;
  uint32_t num_pieces_ = 0;
  uint64_t read_bytes_ = 0;
};

}  // namespace kvasir
