// MatrixProduct: rows of activations times a packed matrix, divided among the threads. Threads
// claim items by a counter and no sum is split, so the result does not depend on the threads.
#pragma once

#include "backend/packed_weights.h"
#include "backend/product_items.h"
#include "base/arena.h"
#include "base/thread_pool.h"

namespace kvasir {

// One call at a time; nothing allocates after construction.
class MatrixProduct {
 public:
  struct Options {
    Target target;
    uint32_t max_rows;
    uint32_t quant_columns;  // of the widest quantised matrix; 0 without one
    uint32_t threads;
  };
  // Scratch memory; the same code counts it and allocates it.
  struct Scratch {
    Scratch(const Options& options, Arena& arena);
    std::byte* quantised;  // [max_rows] of ActivationLayout
    float* gated;          // [threads][kGatedFloats]: products of gate and up of an item
  };
  // `pool` must outlive this.
  MatrixProduct(const Options& options, Arena& arena, ThreadPool& pool);

  struct Call {
    const float* x;  // [rows][w.k], x_stride floats apart
    size_t x_stride;
    uint32_t rows;
    float* y;  // [rows][w.outputs], y_stride floats apart
    size_t y_stride;
    Backend::Into into;
  };
  // REQUIRES: call.rows <= max_rows.
  void Run(const PackedMatrix& w, const Call& call);

  // y = act(w x), elementwise. REQUIRES: call.into is kReplace.
  void RunActivated(const PackedMatrix& w, Activation act, const Call& call);

  // y = act(gate x) * (up x), elementwise. Both factors are still in the cache of the thread
  // that computed them. y is not x. REQUIRES: gate and up have the same shape and one run each;
  // call.into is kReplace.
  void RunGated(const PackedMatrix& gate, const PackedMatrix& up, Activation act, const Call& call);

  uint64_t read_bytes() const { return read_bytes_; }  // of weights, since the start

 private:
  static constexpr uint64_t kUnlimited = ~uint64_t{0};
  // Calls fn(item, thread) for all items of a run, or of `matrices` equal runs side by side. An
  // item has at most max_panels panels. Uses only the calling thread for little work.
  template <typename Fn>
  void ForItems(const PackedRun& run, uint32_t k, uint32_t rows, uint32_t matrices,
                uint64_t max_panels, Fn&& fn);
  // Computes an item of a call, whose rows are in scratch_.quantised if the run is quantised. y:
  // where its first output goes.
  void Multiply(const PackedMatrix& w, const PackedRun& run, const Call& call,
                const ProductItem& item, float* y, size_t y_stride) const;
  void Quantise(WeightFormat format, uint32_t k, const Call& call);

  const ProductKernels kernels_;
  ThreadPool& pool_;
  const Scratch scratch_;
  uint64_t read_bytes_ = 0;
};

}  // namespace kvasir
