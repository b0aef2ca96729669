// MatrixProduct: rows of activations times a packed matrix, shared out over the threads. Work items
// are claimed by a counter and no sum is split, so who computes what never shows.
#pragma once

#include "base/arena.h"
#include "base/thread_pool.h"
#include "model/packed_weights.h"
#include "tensor/kernels.h"
#include "tensor/quant.h"

namespace kvasir {

// One call at a time; nothing allocates after construction.
class MatrixProduct {
 public:
  struct Options {
    Target target;
    uint32_t max_rows;
    uint32_t quant_columns;  // of the widest quantised matrix; 0: there is none
  };
  // Scratch for quantised rows comes from `arena`, which may be one that only counts. `pool` must
  // outlive this.
  MatrixProduct(const Options& options, Arena& arena, ThreadPool& pool);

  struct Call {
    const float* x;  // [rows][w.k], x_stride floats apart
    size_t x_stride;
    uint32_t rows;
    float* y;  // [rows][w.outputs], y_stride floats apart
    size_t y_stride;
    bool accumulate;  // add to y
  };
  // REQUIRES: call.rows <= max_rows.
  void Run(const PackedMatrix& w, const Call& call);

  static uint64_t ScratchBytes(const Options& options);

 private:
  void MultiplyNumbers(const PackedMatrix& w, const PackedRun& run, const Call& call);
  void MultiplyQuantised(const PackedMatrix& w, const PackedRun& run, const Call& call);
  void Quantise(WeightFormat format, uint32_t k, const Call& call);

  const TensorKernels& tensor_;
  const QuantKernels& quant_;
  ThreadPool& pool_;
  std::byte* quantised_;  // [max_rows] of ActivationLayout
};

}  // namespace kvasir
