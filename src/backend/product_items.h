// How products with packed matrices are cut into items of work, and the product of one item.
#pragma once

#include "backend/backend.h"
#include "backend/packed_weights.h"
#include "tensor/kernels.h"
#include "tensor/quant.h"

namespace kvasir {

// Rows of an item of a matrix of numbers: a multiple of what its kernels process at once.
inline constexpr uint32_t kFloatItemRows = 48;
// An item of a gated FFN, both products: 256 KiB, for L2.
inline constexpr uint64_t kGatedFloats = 64 << 10;

// Panels [panel, panel + panels) x rows [row, row + rows) of a product.
struct ProductItem {
  uint32_t panel, panels, row, rows;
};

// How a product is cut into items of `item_panels` x `item_rows`.
class ProductCut {
 public:
  struct Of {
    uint64_t panel_bytes;  // of all matrices that are computed side by side
    uint32_t in_flight;    // panels that a kernel has in flight
    uint64_t max_panels;   // of an item, if it holds as many
    uint32_t panels, rows, item_rows;
    uint64_t phase_bytes;  // weights of all products of the phase
    uint32_t threads;
  };
  explicit ProductCut(const Of& of);
  uint32_t items() const;
  // Returns an item. Neighbouring items have the same weights and different rows, so weights are
  // read once.
  ProductItem At(uint32_t index) const;

 private:
  uint32_t panels_, rows_, item_rows_, item_panels_, chunks_;
};

// Rows that are multiplied: floats, and the same quantised for matrices that need it.
struct ProductRows {
  const float* x;  // [rows][k], stride floats apart
  size_t stride;
  std::byte* quantised;  // blocks of ActivationLayout(k)
  uint32_t rows;
};

struct ProductKernels {
  explicit ProductKernels(Target target)
      : tensor(TensorKernelsFor(target)), quant(QuantKernelsFor(target)) {}

  uint32_t ItemRows(WeightFormat format) const;  // of an item at most
  // Returns the panels in flight at most: items hold multiples of them.
  static uint32_t InFlight(WeightFormat format, uint32_t rows);
  // Quantises block `block` of kBlockRows rows.
  void Quantise(WeightFormat format, uint32_t k, const ProductRows& rows, uint32_t block) const;
  // Computes an item of a run of w. y: where its first output goes.
  void Multiply(const PackedMatrix& w, const PackedRun& run, const ProductRows& rows,
                const ProductItem& item, float* y, size_t y_stride, Backend::Into into) const;

  const TensorKernels& tensor;
  const QuantKernels& quant;
};

// Returns the bytes of all panels.
uint64_t WeightBytes(const PackedMatrix& w);

}  // namespace kvasir
