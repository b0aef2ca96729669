#include "backend/product_items.h"

#include <algorithm>

#include "base/bytes.h"

namespace kvasir {
namespace {

// Bytes of weights in an item. Large items are better: memory is faster in long reads (decode, 1B
// in Q8_0, two cores of a Sapphire Rapids: 22.5 tokens/s with 64 KiB, 25.5 with up to 1 MiB), and
// the rows are read from L3 once per item (prefill of 512 with avx512vnni: 366, 386). But each
// thread must get some.
constexpr uint64_t kMinItemBytes = 64 << 10, kMaxItemBytes = 1 << 20;
constexpr uint32_t kItemsPerThread = 4;

}  // namespace

ProductCut::ProductCut(const Of& of)
    : panels_(of.panels), rows_(of.rows), item_rows_(of.item_rows) {
  const uint64_t share = of.phase_bytes / (uint64_t{of.threads} * kItemsPerThread);
  const uint64_t bytes = std::clamp(share, kMinItemBytes, kMaxItemBytes);
  const uint64_t most = std::min(bytes / of.panel_bytes, of.max_panels);
  item_panels_ = std::max<uint32_t>(1, uint32_t(most / of.in_flight)) * of.in_flight;
  chunks_ = static_cast<uint32_t>(CeilDiv(of.rows, of.item_rows));
}

uint32_t ProductCut::items() const {
  return static_cast<uint32_t>(CeilDiv(panels_, item_panels_)) * chunks_;
}

ProductItem ProductCut::At(uint32_t index) const {
  const uint32_t panel = index / chunks_ * item_panels_, row = index % chunks_ * item_rows_;
  return {panel, std::min(item_panels_, panels_ - panel), row, std::min(item_rows_, rows_ - row)};
}

uint32_t ProductKernels::ItemRows(WeightFormat format) const {
  return LayoutOf(format).quantised() ? quant.item_rows : kFloatItemRows;
}

uint32_t ProductKernels::InFlight(WeightFormat format, uint32_t rows) {
  // Quantised, 2 or 1; numbers (PanelsFor in tensor/kernels-inl.h), 4, 2 or 1 for one and two rows;
  // 6, 3 or 1 for more.
  return LayoutOf(format).quantised() ? 2 : rows > 2 ? 6 : 8;
}

void ProductKernels::Quantise(WeightFormat format, uint32_t k, const ProductRows& rows,
                              uint32_t block) const {
  const uint32_t row = block * kBlockRows;
  quant.quantise({rows.x + row * rows.stride, rows.stride, std::min(rows.rows - row, kBlockRows), k,
                  format, rows.quantised + row * ActivationLayout(k).bytes()});
}

void ProductKernels::Multiply(const PackedMatrix& w, const PackedRun& run, const ProductRows& rows,
                              const ProductItem& item, float* y, size_t y_stride,
                              Backend::Into into) const {
  const bool accumulate = into == Backend::Into::kAdd;
  const uint32_t first = item.panel * kPanelOutputs;
  const std::byte* panels = run.panels + item.panel * PanelBytes(run.format, w.k);
  const float* bias = w.bias == nullptr ? nullptr : w.bias + run.first_output + first;
  const uint32_t outputs = run.outputs - first;
  if (!LayoutOf(run.format).quantised()) {
    const float* x = rows.x + item.row * rows.stride;
    return tensor.mat_mul({x, rows.stride, panels, run.format, bias, y, y_stride, item.rows, w.k,
                           outputs, 0, item.panels, accumulate});
  }
  const size_t row_bytes = ActivationLayout(w.k).bytes();
  const std::byte* x = rows.quantised + item.row * row_bytes;
  quant.mat_mul({x, row_bytes, panels, run.format, bias, y, y_stride, item.rows, w.k, outputs, 0,
                 item.panels, accumulate});
}

uint64_t WeightBytes(const PackedMatrix& w) {
  uint64_t bytes = 0;
  for (const PackedRun& run : w.runs()) {
    bytes += CeilDiv(run.outputs, kPanelOutputs) * PanelBytes(run.format, w.k);
  }
  return bytes;
}

}  // namespace kvasir
