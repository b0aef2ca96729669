#include "backend/matrix_product.h"

#include <algorithm>

#include "backend/backend.h"
#include "base/bytes.h"
#include "base/check.h"

namespace kvasir {
namespace {

// Bytes of weights in an item. Large items are better: memory is faster in long reads (decode, 1B
// in Q8_0, two cores of a Sapphire Rapids: 22.5 tokens/s with 64 KiB, 25.5 with up to 1 MiB), and
// the rows are read from L3 once per item (prefill of 512 with avx512vnni: 366, 386). But each
// thread must get some.
constexpr uint64_t kMinItemBytes = 64 << 10, kMaxItemBytes = 1 << 20;
constexpr uint32_t kItemsPerThread = 4;
constexpr uint32_t kItemRows = 48;  // a multiple of the rows that each kernel processes at once

}  // namespace

// Panels [panel, panel + panels) x rows [row, row + rows) of a product.
struct MatrixProduct::Item {
  uint32_t panel, panels, row, rows;
};

// How a product is cut into items of `item_panels` x `item_rows`.
class MatrixProduct::Cut {
 public:
  // in_flight: panels that a kernel has in flight; max_panels: of an item, if it holds as many.
  Cut(uint64_t panel_bytes, uint32_t in_flight, uint64_t max_panels, uint32_t panels, uint32_t rows,
      uint32_t item_rows, uint32_t threads)
      : panels_(panels), rows_(rows), item_rows_(item_rows) {
    const uint64_t share = panels * panel_bytes / (uint64_t{threads} * kItemsPerThread);
    const uint64_t bytes = std::clamp(share, kMinItemBytes, kMaxItemBytes);
    const uint64_t most = std::min(bytes / panel_bytes, max_panels);
    item_panels_ = std::max<uint32_t>(1, uint32_t(most / in_flight)) * in_flight;
    chunks_ = static_cast<uint32_t>(CeilDiv(rows, item_rows));
  }
  uint32_t items() const { return static_cast<uint32_t>(CeilDiv(panels_, item_panels_)) * chunks_; }
  // Neighbouring items have the same weights and different rows, so weights are read once.
  Item At(uint32_t index) const {
    const uint32_t panel = index / chunks_ * item_panels_, row = index % chunks_ * item_rows_;
    return {panel, std::min(item_panels_, panels_ - panel), row, std::min(item_rows_, rows_ - row)};
  }

 private:
  uint32_t panels_, rows_, item_rows_, item_panels_, chunks_;
};

MatrixProduct::Scratch::Scratch(const Options& options, Arena& arena) {
  const uint32_t columns = options.quant_columns;
  quantised = arena.Take(columns == 0 ? 0 : ActivationLayout(columns).bytes() * options.max_rows);
  gated = arena.TakeArray<float>(options.threads * kGatedFloats);
}

MatrixProduct::MatrixProduct(const Options& options, Arena& arena, ThreadPool& pool)
    : tensor_(TensorKernelsFor(options.target)),
      quant_(QuantKernelsFor(options.target)),
      pool_(pool),
      scratch_(options, arena) {
  KV_CHECK(uint64_t{2} * 2 * kPanelOutputs * quant_.item_rows <= kGatedFloats);  // 2 in flight
  static_assert(2 * 6 * kPanelOutputs * kItemRows <= kGatedFloats);
}

void MatrixProduct::Run(const PackedMatrix& w, const Call& call) {
  for (const PackedRun& run : w.runs()) {
    Quantise(run.format, w.k, call);
    ForItems(run, w.k, call.rows, 1, kUnlimited, [&](const Item& item, uint32_t) {
      float* y = call.y + item.row * call.y_stride + run.first_output;
      Multiply(w, run, call, item, y + item.panel * kPanelOutputs, call.y_stride);
    });
  }
}

void MatrixProduct::RunActivated(const PackedMatrix& w, Activation act, const Call& call) {
  KV_DCHECK(!call.accumulate);
  for (const PackedRun& run : w.runs()) {
    Quantise(run.format, w.k, call);
    ForItems(run, w.k, call.rows, 1, kUnlimited, [&](const Item& item, uint32_t) {
      const uint32_t first = item.panel * kPanelOutputs;
      const uint32_t n = std::min(item.panels * kPanelOutputs, run.outputs - first);
      float* y = call.y + item.row * call.y_stride + run.first_output + first;
      Multiply(w, run, call, item, y, call.y_stride);
      for (uint32_t row = 0; row < item.rows; ++row) {
        tensor_.activate(act, n, y + row * call.y_stride);
      }
    });
  }
}

void MatrixProduct::RunGated(const PackedMatrix& gate, const PackedMatrix& up, Activation act,
                             const Call& call) {
  KV_DCHECK(gate.num_runs == 1 && up.num_runs == 1 && gate.outputs == up.outputs &&
            gate.k == up.k && !call.accumulate);
  const PackedRun &gate_run = gate.run[0], &up_run = up.run[0];
  // Rows are quantised for one format. Different formats are rare: then gate's products wait in y.
  const bool together = gate_run.format == up_run.format;
  if (!together) Run(gate, call);
  Quantise(up_run.format, up.k, call);
  const uint64_t item_rows = std::min(call.rows, ItemRows(up_run.format));
  const uint64_t max_panels = kGatedFloats / (2 * item_rows * kPanelOutputs);
  ForItems(up_run, up.k, call.rows, together ? 2 : 1, max_panels,
           [&](const Item& item, uint32_t thread) {
             const uint32_t first = item.panel * kPanelOutputs;
             const uint32_t n = std::min(item.panels * kPanelOutputs, up.outputs - first);
             const size_t width = item.panels * kPanelOutputs, stride = width * 2;
             KV_DCHECK(item.rows * stride <= kGatedFloats);
             float* products = scratch_.gated + thread * kGatedFloats;
             if (together) Multiply(gate, gate_run, call, item, products, stride);
             Multiply(up, up_run, call, item, products + width, stride);
             for (uint32_t row = 0; row < item.rows; ++row) {
               float* y = call.y + (item.row + row) * call.y_stride + first;
               const float* of = products + row * stride;
               tensor_.gated(act, together ? of : y, of + width, n, y);
             }
           });
}

uint32_t MatrixProduct::ItemRows(WeightFormat format) const {
  return LayoutOf(format).quantised() ? quant_.item_rows : kItemRows;
}

template <typename Fn>
void MatrixProduct::ForItems(const PackedRun& run, uint32_t k, uint32_t rows, uint32_t matrices,
                             uint64_t max_panels, Fn&& fn) {
  const bool few = uint64_t{rows} * k * run.outputs * matrices < kMinParallelWork;
  // Multiples of the kernels' panels in flight: quantised, 2 or 1; numbers (PanelsFor in
  // tensor/kernels-inl.h), 4, 2 or 1 for one and two rows; 6, 3 or 1 for more.
  const uint32_t in_flight = LayoutOf(run.format).quantised() ? 2 : rows > 2 ? 6 : 8;
  const Cut cut(PanelBytes(run.format, k) * matrices, in_flight, max_panels,
                static_cast<uint32_t>(CeilDiv(run.outputs, kPanelOutputs)), rows,
                ItemRows(run.format), few ? 1 : pool_.num_threads());
  if (!few) {
    return pool_.Run(cut.items(), [&](uint32_t i, uint32_t thread) { fn(cut.At(i), thread); });
  }
  for (uint32_t i = 0; i < cut.items(); ++i) fn(cut.At(i), 0);
}

void MatrixProduct::Multiply(const PackedMatrix& w, const PackedRun& run, const Call& call,
                             const Item& item, float* y, size_t y_stride) const {
  const uint32_t first = item.panel * kPanelOutputs;
  const std::byte* panels = run.panels + item.panel * PanelBytes(run.format, w.k);
  const float* bias = w.bias == nullptr ? nullptr : w.bias + run.first_output + first;
  const uint32_t outputs = run.outputs - first;
  if (!LayoutOf(run.format).quantised()) {
    const float* x = call.x + item.row * call.x_stride;
    return tensor_.mat_mul({x, call.x_stride, panels, run.format, bias, y, y_stride, item.rows, w.k,
                            outputs, 0, item.panels, call.accumulate});
  }
  const size_t row_bytes = ActivationLayout(w.k).bytes();
  const std::byte* x = scratch_.quantised + item.row * row_bytes;
  quant_.mat_mul({x, row_bytes, panels, run.format, bias, y, y_stride, item.rows, w.k, outputs, 0,
                  item.panels, call.accumulate});
}

void MatrixProduct::Quantise(WeightFormat format, uint32_t k, const Call& call) {
  if (!LayoutOf(format).quantised()) return;
  const size_t row_bytes = ActivationLayout(k).bytes();
  const auto quantise = [&](uint32_t block, uint32_t) {
    const uint32_t row = block * kBlockRows;
    quant_.quantise({call.x + row * call.x_stride, call.x_stride,
                     std::min(call.rows - row, kBlockRows), k, format,
                     scratch_.quantised + row * row_bytes});
  };
  const auto blocks = static_cast<uint32_t>(CeilDiv(call.rows, kBlockRows));
  if (uint64_t{call.rows} * k >= kMinParallelWork / 16) return pool_.Run(blocks, quantise);
  for (uint32_t block = 0; block < blocks; ++block) quantise(block, 0);
}

}  // namespace kvasir
