#include "model/matrix_product.h"

#include <algorithm>

#include "base/bytes.h"
#include "model/backend.h"

namespace kvasir {
namespace {

// Weights of an item. Memory is faster in long stretches (decode of the 1B shape on two cores of a
// Sapphire Rapids: 22.5 tok/s with 64 KiB, 25.5 with up to 1 MiB), and many rows come from the
// third cache once an item (prefill: 366 tok/s, 386): as long as a matrix has kItemsOfThread of
// them for each thread.
constexpr uint64_t kItemBytes = 64 << 10;
constexpr uint64_t kStretchBytes = 1 << 20;
constexpr uint32_t kItemsOfThread = 4;
constexpr uint32_t kFewRows = 8;
constexpr uint32_t kRowChunk = 48;  // a multiple of every kernel's rows in flight

// Panels [begin, end) x rows [row, row + count) of a product.
struct Item {
  uint32_t panel_begin, panel_end, row, count;
};

// How a product of `panels` x `rows` is cut: kItemBytes of weights to a stretch, `row_chunk` rows.
struct Cut {
  Cut(uint64_t panel_bytes, uint32_t in_flight, uint32_t panels, uint32_t rows, uint32_t row_chunk,
      uint32_t threads)
      : panels(panels), rows(rows), row_chunk(row_chunk) {
    const uint64_t share = panels * panel_bytes / (uint64_t{threads} * kItemsOfThread);
    const uint64_t bytes = std::clamp(share, kItemBytes, kStretchBytes);
    group = std::max<uint32_t>(1, uint32_t(bytes / panel_bytes / in_flight)) * in_flight;
    chunks = static_cast<uint32_t>(CeilDiv(rows, row_chunk));
  }
  uint32_t items() const { return static_cast<uint32_t>(CeilDiv(panels, group)) * chunks; }
  // Neighbours share their weights, not their rows: the weights are read from memory once.
  Item At(uint32_t index) const {
    const uint32_t panel = index / chunks * group, row = index % chunks * row_chunk;
    return {panel, std::min(panels, panel + group), row, std::min(row_chunk, rows - row)};
  }
  uint32_t panels, rows, row_chunk, group, chunks;
};

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
  const uint32_t in_flight =
      call.rows > kFewRows ? 6 : 8;  // multiples of every kernel's panels in flight
  const Cut cut(PanelBytes(run.format, w.k), in_flight, panels, call.rows, kRowChunk,
                pool_.num_threads());
  pool_.Run(cut.items(), [&](uint32_t index, uint32_t) {
    const Item item = cut.At(index);
    TensorKernels::MatMulArgs args = whole;
    args.x += item.row * call.x_stride;
    args.y += item.row * call.y_stride;
    args.rows = item.count;
    args.panel_begin = item.panel_begin;
    args.panel_end = item.panel_end;
    tensor_.mat_mul(args);
  });
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
  const Cut cut(PanelBytes(run.format, w.k), 2, panels, call.rows, quant_.row_chunk,
                pool_.num_threads());
  pool_.Run(cut.items(), [&](uint32_t index, uint32_t) {
    const Item item = cut.At(index);
    QuantKernels::MatMulArgs args = whole;
    args.rows += item.row * row_stride;
    args.y += item.row * call.y_stride;
    args.row_count = item.count;
    args.panel_begin = item.panel_begin;
    args.panel_end = item.panel_end;
    quant_.mat_mul(args);
  });
}

void MatrixProduct::Quantise(WeightFormat format, uint32_t k, const Call& call) {
  constexpr uint32_t kRows = 8;  // of a work item
  const size_t row_stride = ActivationLayout(k).bytes();
  const auto quantise = [&](uint32_t row) {
    quant_.quantise(call.x + row * call.x_stride, k, format, quantised_ + row * row_stride);
  };
  if (uint64_t{call.rows} * k < kMinParallelWork / 16) {
    for (uint32_t row = 0; row < call.rows; ++row) quantise(row);
    return;
  }
  pool_.Run(static_cast<uint32_t>(CeilDiv(call.rows, kRows)), [&](uint32_t chunk, uint32_t) {
    const uint32_t end = std::min(call.rows, (chunk + 1) * kRows);
    for (uint32_t row = chunk * kRows; row < end; ++row) quantise(row);
  });
}

}  // namespace kvasir
