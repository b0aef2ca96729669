#include "model/matrix_product.h"

#include <algorithm>

#include "base/bytes.h"
#include "model/backend.h"

namespace kvasir {
namespace {

// Weights of an item: much, since memory is faster in long stretches (decode, 1B in Q8_0, two cores
// of a Sapphire Rapids: 22.5 tokens/s with 64 KiB, 25.5 with up to 1 MiB) and the rows are read
// from L3 once an item (prefill of 512 by avx512vnni: 366, 386); but so that each thread gets some.
constexpr uint64_t kMinItemBytes = 64 << 10, kMaxItemBytes = 1 << 20;
constexpr uint32_t kItemsPerThread = 4;
constexpr uint32_t kItemRows = 48;  // a multiple of every kernel's rows in flight

// Panels [begin, end) x rows [row, row + count) of a product.
struct Item {
  uint32_t panel_begin, panel_end, row, count;
};

// How a product of `panels` x `rows` is cut: items of `item_panels` x `item_rows`.
struct Cut {
  Cut(uint64_t panel_bytes, uint32_t in_flight, uint32_t panels, uint32_t rows, uint32_t item_rows,
      uint32_t threads)
      : panels(panels), rows(rows), item_rows(item_rows) {
    const uint64_t share = panels * panel_bytes / (uint64_t{threads} * kItemsPerThread);
    const uint64_t bytes = std::clamp(share, kMinItemBytes, kMaxItemBytes);
    item_panels = std::max<uint32_t>(1, uint32_t(bytes / panel_bytes / in_flight)) * in_flight;
    chunks = static_cast<uint32_t>(CeilDiv(rows, item_rows));
  }
  uint32_t items() const { return static_cast<uint32_t>(CeilDiv(panels, item_panels)) * chunks; }
  // Neighbours share their weights, not their rows: the weights are read from memory once.
  Item At(uint32_t index) const {
    const uint32_t panel = index / chunks * item_panels, row = index % chunks * item_rows;
    return {panel, std::min(panels, panel + item_panels), row, std::min(item_rows, rows - row)};
  }
  uint32_t panels, rows, item_rows, item_panels, chunks;
};

// Args: of TensorKernels or of QuantKernels.
template <class Args>
void RunItems(ThreadPool& pool, const Cut& cut, const Args& whole, void (*mat_mul)(const Args&)) {
  pool.Run(cut.items(), [&](uint32_t index, uint32_t) {
    const Item item = cut.At(index);
    Args args = whole;
    args.x += item.row * whole.x_stride;
    args.y += item.row * whole.y_stride;
    args.rows = item.count;
    args.panel_begin = item.panel_begin;
    args.panel_end = item.panel_end;
    mat_mul(args);
  });
}

uint32_t PanelsOf(const PackedRun& run) {
  return static_cast<uint32_t>(CeilDiv(run.outputs, kPanelOutputs));
}

bool Small(const PackedMatrix& w, const PackedRun& run, uint32_t rows) {
  return uint64_t{rows} * w.k * run.outputs < kMinParallelWork;
}

const float* BiasOf(const PackedMatrix& w, const PackedRun& run) {
  return w.bias == nullptr ? nullptr : w.bias + run.first_output;
}

}  // namespace

MatrixProduct::MatrixProduct(const Options& options, Arena& arena, ThreadPool& pool)
    : tensor_(TensorKernelsFor(options.target)),
      quant_(QuantKernelsFor(options.target)),
      pool_(pool),
      quantised_(arena.Take(ScratchBytes(options))) {}

uint64_t MatrixProduct::ScratchBytes(const Options& options) {
  if (options.quant_columns == 0) return 0;
  return ActivationLayout(options.quant_columns).bytes() * options.max_rows;
}

void MatrixProduct::Run(const PackedMatrix& w, const Call& call) {
  for (const PackedRun& run : w.runs()) {
    if (LayoutOf(run.format).quantised()) {
      MultiplyQuantised(w, run, call);
    } else {
      MultiplyNumbers(w, run, call);
    }
  }
}

void MatrixProduct::MultiplyNumbers(const PackedMatrix& w, const PackedRun& run, const Call& call) {
  const uint32_t panels = PanelsOf(run);
  const TensorKernels::MatMulArgs whole{call.x,
                                        call.x_stride,
                                        run.panels,
                                        run.format,
                                        BiasOf(w, run),
                                        call.y + run.first_output,
                                        call.y_stride,
                                        call.rows,
                                        w.k,
                                        run.outputs,
                                        0,
                                        panels,
                                        call.accumulate};
  if (Small(w, run, call.rows)) return tensor_.mat_mul(whole);
  // Multiples of the kernels' panels in flight (PanelsFor in tensor/kernels-inl.h): 4, 2 or 1 for
  // one and two rows; 6, 3 or 1 for more.
  const uint32_t in_flight = call.rows > 2 ? 6 : 8;
  const Cut cut(PanelBytes(run.format, w.k), in_flight, panels, call.rows, kItemRows,
                pool_.num_threads());
  RunItems(pool_, cut, whole, tensor_.mat_mul);
}

void MatrixProduct::MultiplyQuantised(const PackedMatrix& w, const PackedRun& run,
                                      const Call& call) {
  Quantise(run.format, w.k, call);
  const size_t row_stride = ActivationLayout(w.k).bytes();
  const uint32_t panels = PanelsOf(run);
  const QuantKernels::MatMulArgs whole{quantised_,
                                       row_stride,
                                       run.panels,
                                       run.format,
                                       BiasOf(w, run),
                                       call.y + run.first_output,
                                       call.y_stride,
                                       call.rows,
                                       w.k,
                                       run.outputs,
                                       0,
                                       panels,
                                       call.accumulate};
  if (Small(w, run, call.rows)) return quant_.mat_mul(whole);
  const Cut cut(PanelBytes(run.format, w.k), 2, panels, call.rows, quant_.item_rows,
                pool_.num_threads());
  RunItems(pool_, cut, whole, quant_.mat_mul);
}

void MatrixProduct::Quantise(WeightFormat format, uint32_t k, const Call& call) {
  const size_t row_stride = ActivationLayout(k).bytes();
  const auto quantise = [&](uint32_t block, uint32_t) {
    const uint32_t row = block * kBlockRows;
    quant_.quantise({call.x + row * call.x_stride, call.x_stride,
                     std::min(call.rows - row, kBlockRows), k, format,
                     quantised_ + row * row_stride});
  };
  const auto blocks = static_cast<uint32_t>(CeilDiv(call.rows, kBlockRows));
  if (uint64_t{call.rows} * k >= kMinParallelWork / 16) return pool_.Run(blocks, quantise);
  for (uint32_t block = 0; block < blocks; ++block) quantise(block, 0);
}

}  // namespace kvasir
