#include "backend/matrix_packer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "backend/panel_filler.h"
#include "base/bytes.h"
#include "base/result.h"
#include "import/float_numbers.h"
#include "tensor/quantise.h"

namespace kvasir {
namespace {

// Source bytes packed between two rounds of dropping pages.
constexpr uint64_t kBatchBytes = uint64_t{32} << 20;

// Returns the stored row that holds output `row` of ours.
uint64_t StoredRow(const MatrixSource& source, uint64_t row, uint32_t head_dim) {
  if (!source.interleaved_rope_rows) return row;
  const uint64_t head = row / head_dim, i = row % head_dim, half = head_dim / 2;
  return head * head_dim + (i < half ? 2 * i : 2 * (i - half) + 1);
}

bool AllFinite(const MatrixSource& source) {
  const TensorView& view = source.view;
  if (view.integers) return true;  // as their scales say, which the importer checks
  if (source.column_stride == 1) return AllFinite(view.dtype, view.data, view.num_elements());
  for (uint64_t column = 0; column < view.shape[1]; ++column) {
    const std::byte* data = view.data + StoredBytes(view.dtype, column * source.column_stride);
    if (!AllFinite(view.dtype, data, view.shape[0])) return false;
  }
  return true;
}

// Copies a row of a source that is stored as [in, out], number by number.
void GatherRow(const MatrixSource& source, uint64_t row, std::byte* to) {
  const TensorView& view = source.view;
  const uint32_t bytes = BytesOf(view.dtype);
  const std::byte* from = view.data + row * bytes;
  for (uint64_t i = 0; i < view.shape[1]; ++i, from += source.column_stride * bytes) {
    std::memcpy(to + i * bytes, from, bytes);
  }
}

tl::unexpected<Error> NotFinite(const TensorView& view) {
  return Fail(Code::kCorruption,
              "weights: tensor {} holds NaN or infinity: the file is damaged or was exported "
              "wrongly; fetch or export it again",
              view.name);
}

// Returns the error of a tensor from which no panel of `format` can be filled.
tl::unexpected<Error> Refused(const MatrixSource& source, WeightFormat format) {
  const TensorView& view = source.view;
  if (format == view.dtype || !AllFinite(source)) return NotFinite(view);
  return FailField(Code::kInvalidArgument, "weights",
                   "tensor {} holds numbers beyond {}, too large for {}: leave --weights out",
                   view.name, kMaxQuantised, LayoutOf(format).name);
}

// Returns the source of an output of a run, and its row there.
std::pair<const MatrixSource*, uint32_t> RowOf(std::span<const MatrixSource* const> sources,
                                               uint32_t output) {
  size_t i = 0;
  for (; output >= sources[i]->view.shape[0]; ++i) {
    output -= static_cast<uint32_t>(sources[i]->view.shape[0]);
  }
  return {sources[i], output};
}

}  // namespace

Status MatrixPacker::CheckInPlace(const MatrixSource& source) const {
  if (fills() && !AllFinite(source)) return NotFinite(source.view);
  return {};
}

Result<const float*> MatrixPacker::Vector(const std::vector<MatrixSource>& parts) {
  uint64_t count = 0;
  for (const MatrixSource& part : parts) count += part.view.num_elements();
  float* numbers = arena_.TakeArray<float>(RoundUp(count, 16));
  if (filling_ == nullptr) return numbers;
  for (const MatrixSource& part : parts) {
    const TensorView& view = part.view;
    if (!AllFinite(part)) return NotFinite(view);
    for (uint64_t i = 0; i < view.num_elements(); ++i) {
      const uint64_t stored = StoredRow(part, i, model_.config.head_dim);
      Widen(view.dtype, view.data + StoredBytes(view.dtype, stored), 1, numbers);
      if (view.less_one) *numbers = 1.0f + *numbers;
      ++numbers;
    }
  }
  return numbers - count;
}

Status MatrixPacker::PackRun(std::span<const MatrixSource* const> sources, uint32_t k,
                             PackedRun& run) {
  const uint32_t panels = static_cast<uint32_t>(CeilDiv(run.outputs, kPanelOutputs));
  const uint64_t panel_bytes = PanelBytes(run.format, k);
  std::byte* data = arena_.Take(panels * panel_bytes);
  run.panels = data;
  uint64_t source_panel_bytes = 0, whole_bytes = 0;
  for (const MatrixSource* source : sources) {
    source_panel_bytes = std::max(source_panel_bytes, source->view.row_bytes() * kPanelOutputs);
    whole_bytes += source->column_stride == 1 ? 0 : source->view.num_bytes();
  }
  const uint32_t batch =
      static_cast<uint32_t>(std::clamp<uint64_t>(kBatchBytes / source_panel_bytes, 1, panels));
  totals_.source_bytes += panels * source_panel_bytes;
  totals_.load_bytes = std::max({totals_.load_bytes, batch * source_panel_bytes, whole_bytes});
  if (IsQuantised(run.format)) totals_.quant_columns = std::max(totals_.quant_columns, k);
  if (filling_ == nullptr) return {};
  for (uint32_t begin = 0; begin < panels; begin += batch) {
    const uint32_t end = std::min(begin + batch, panels);
    std::atomic<uint32_t> bad = UINT32_MAX;  // the first output with a number that is not finite
    filling_->pool.Run(end - begin, [&](uint32_t i, uint32_t) {
      Fill(sources, k, run, begin + i, data + (begin + i) * panel_bytes, bad);
    });
    if (bad != UINT32_MAX) return Refused(*RowOf(sources, bad).first, run.format);
    Drop(sources, begin * kPanelOutputs, end * kPanelOutputs);
    filling_->done_bytes += (end - begin) * source_panel_bytes;
    if (filling_->progress) {
      filling_->progress(double(filling_->done_bytes) / double(filling_->total_bytes));
    }
  }
  for (const MatrixSource* source : sources) DropTransposed(*source);
  return {};
}

void MatrixPacker::Fill(std::span<const MatrixSource* const> sources, uint32_t k,
                        const PackedRun& run, uint32_t panel, std::byte* to,
                        std::atomic<uint32_t>& bad) const {
  const uint32_t first = panel * kPanelOutputs;
  std::array<PanelRow, kPanelOutputs> rows;
  const uint32_t lanes = std::min(kPanelOutputs, run.outputs - first);
  std::vector<std::byte> gathered;
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    const auto [source, row] = RowOf(sources, first + lane);
    const TensorView& view = source->view;
    if (source->column_stride == 1 && !view.integers) {
      const uint64_t stored = StoredRow(*source, row, model_.config.head_dim);
      rows[lane] = {view.data + stored * view.row_bytes(), view.dtype};
      continue;
    }
    gathered.resize(size_t{kPanelOutputs} * k * sizeof(float));
    std::byte* to = gathered.data() + size_t{lane} * k * sizeof(float);
    if (view.integers) {
      WidenRow(*view.integers, row, k, reinterpret_cast<float*>(to));
    } else {
      GatherRow(*source, row, to);
    }
    rows[lane] = {to, view.dtype};
  }
  const uint32_t bad_lanes = FillPanel(run.format, {rows.data(), lanes}, k, to);
  if (bad_lanes == 0) return;
  const uint32_t output = first + static_cast<uint32_t>(__builtin_ctz(bad_lanes));
  uint32_t seen = bad;
  while (output < seen && !bad.compare_exchange_weak(seen, output)) {
  }
}

// Drops the pages of a source that is stored as [in, out]: every row needs all of them.
void MatrixPacker::DropTransposed(const MatrixSource& source) const {
  if (source.column_stride == 1) return;
  const TensorView& view = source.view;
  const uint64_t numbers = (view.shape[1] - 1) * source.column_stride + view.shape[0];
  for (const auto& file : model_.mapped_files) {
    file->Drop({view.data, StoredBytes(view.dtype, numbers)});
  }
}

// Drops the pages of outputs [begin, end) of a run, which are packed. Keeps the rows of a head that
// is not done.
void MatrixPacker::Drop(std::span<const MatrixSource* const> sources, uint64_t begin,
                        uint64_t end) const {
  for (const MatrixSource* source : sources) {
    const uint64_t rows = source->view.shape[0];
    if (source->column_stride != 1) {  // DropTransposed has them
      begin -= std::min(begin, rows);
      end -= std::min(end, rows);
      continue;
    }
    const uint64_t head = source->interleaved_rope_rows ? model_.config.head_dim : 1;
    const uint64_t from = std::min(begin, rows) / head * head;
    const uint64_t to = std::min(end, rows) / head * head;
    const auto& integers = source->view.integers;
    const std::byte* data = integers ? integers->data : source->view.data;
    const uint64_t row_bytes =
        integers ? source->view.shape[1] * integers->bytes : source->view.row_bytes();
    for (const auto& file : model_.mapped_files) {
      file->Drop({data + from * row_bytes, data + to * row_bytes});
    }
    begin -= std::min(begin, rows);
    end -= std::min(end, rows);
  }
}

}  // namespace kvasir
