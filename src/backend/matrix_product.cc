#include "backend/matrix_product.h"

#include <algorithm>

#include "backend/backend.h"
#include "base/bytes.h"
#include "base/check.h"

namespace kvasir {
MatrixProduct::Scratch::Scratch(const Options& options, Arena& arena) {
  const uint32_t columns = options.quant_columns;
  quantised = arena.Take(columns == 0 ? 0 : ActivationLayout(columns).bytes() * options.max_rows);
  gated = arena.TakeArray<float>(options.threads * kGatedFloats);
}

MatrixProduct::MatrixProduct(const Options& options, Arena& arena, ThreadPool& pool)
    : kernels_(options.target), pool_(pool), scratch_(options, arena) {
  KV_CHECK(uint64_t{2} * 2 * kPanelOutputs * kernels_.quant.item_rows <=
           kGatedFloats);  // 2 in flight
  static_assert(2 * 6 * kPanelOutputs * kFloatItemRows <= kGatedFloats);
}

void MatrixProduct::Run(const PackedMatrix& w, const Call& call) {
  for (const PackedRun& run : w.runs()) {
    Quantise(run.format, w.k, call);
    ForItems(run, w.k, call.rows, 1, kUnlimited, [&](const ProductItem& item, uint32_t) {
      float* y = call.y + item.row * call.y_stride + run.first_output;
      Multiply(w, run, call, item, y + item.panel * kPanelOutputs, call.y_stride);
    });
  }
}

void MatrixProduct::RunActivated(const PackedMatrix& w, Activation act, const Call& call) {
  KV_DCHECK(call.into == Backend::Into::kReplace);
  for (const PackedRun& run : w.runs()) {
    Quantise(run.format, w.k, call);
    ForItems(run, w.k, call.rows, 1, kUnlimited, [&](const ProductItem& item, uint32_t) {
      const uint32_t first = item.panel * kPanelOutputs;
      const uint32_t n = std::min(item.panels * kPanelOutputs, run.outputs - first);
      float* y = call.y + item.row * call.y_stride + run.first_output + first;
      Multiply(w, run, call, item, y, call.y_stride);
      for (uint32_t row = 0; row < item.rows; ++row) {
        kernels_.tensor.activate(act, n, y + row * call.y_stride);
      }
    });
  }
}

void MatrixProduct::RunGated(const PackedMatrix& gate, const PackedMatrix& up, Activation act,
                             const Call& call) {
  KV_DCHECK(gate.num_runs == 1 && up.num_runs == 1 && gate.outputs == up.outputs &&
            gate.k == up.k && call.into == Backend::Into::kReplace);
  const PackedRun &gate_run = gate.run[0], &up_run = up.run[0];
  // Rows are quantised for one format. Different formats are rare: then gate's products wait in y.
  const bool together = gate_run.format == up_run.format;
  if (!together) Run(gate, call);
  Quantise(up_run.format, up.k, call);
  const uint64_t item_rows = std::min(call.rows, kernels_.ItemRows(up_run.format));
  const uint64_t max_panels = kGatedFloats / (2 * item_rows * kPanelOutputs);
  ForItems(up_run, up.k, call.rows, together ? 2 : 1, max_panels,
           [&](const ProductItem& item, uint32_t thread) {
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
               kernels_.tensor.gated(act, together ? of : y, of + width, n, y);
             }
           });
}

template <typename Fn>
void MatrixProduct::ForItems(const PackedRun& run, uint32_t k, uint32_t rows, uint32_t matrices,
                             uint64_t max_panels, Fn&& fn) {
  const bool few = uint64_t{rows} * k * run.outputs * matrices < kMinParallelWork;
  const uint64_t panel_bytes = PanelBytes(run.format, k) * matrices;
  const auto panels = static_cast<uint32_t>(CeilDiv(run.outputs, kPanelOutputs));
  read_bytes_ += panels * panel_bytes;
  const ProductCut cut({.panel_bytes = panel_bytes,
                        .in_flight = ProductKernels::InFlight(run.format, rows),
                        .max_panels = max_panels,
                        .panels = panels,
                        .rows = rows,
                        .item_rows = kernels_.ItemRows(run.format),
                        .phase_bytes = panels * panel_bytes,
                        .threads = few ? 1 : pool_.num_threads()});
  if (!few) {
    return pool_.Run(cut.items(), [&](uint32_t i, uint32_t thread) { fn(cut.At(i), thread); });
  }
  for (uint32_t i = 0; i < cut.items(); ++i) fn(cut.At(i), 0);
}

void MatrixProduct::Multiply(const PackedMatrix& w, const PackedRun& run, const Call& call,
                             const ProductItem& item, float* y, size_t y_stride) const {
  kernels_.Multiply(w, run, {call.x, call.x_stride, scratch_.quantised, call.rows}, item, y,
                    y_stride, call.into);
}

void MatrixProduct::Quantise(WeightFormat format, uint32_t k, const Call& call) {
  if (!LayoutOf(format).quantised()) return;
  const auto quantise = [&](uint32_t block, uint32_t) {
    kernels_.Quantise(format, k, {call.x, call.x_stride, scratch_.quantised, call.rows}, block);
  };
  const auto blocks = static_cast<uint32_t>(CeilDiv(call.rows, kBlockRows));
  if (uint64_t{call.rows} * k >= kMinParallelWork / 16) return pool_.Run(blocks, quantise);
  for (uint32_t block = 0; block < blocks; ++block) quantise(block, 0);
}

}  // namespace kvasir
