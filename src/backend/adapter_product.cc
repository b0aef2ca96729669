#include "backend/adapter_product.h"

#include <algorithm>
#include <tuple>

#include "backend/backend.h"
#include "base/bytes.h"
#include "base/check.h"

namespace kvasir {
namespace {

// Rows of a piece: a multiple of what the kernels process at once.
constexpr uint32_t kPieceRows = 48;
// Panels of an item of B: 256 outputs.
constexpr uint32_t kExpandPanels = 16;

}  // namespace

AdapterProduct::Scratch::Scratch(const Options& o, Arena& arena) {
  const uint64_t slots = uint64_t{o.max_rows} * o.limits.max_adapters;
  t_stride = RoundUp(o.limits.max_rank, kPanelOutputs) * kMaxAdapterOutputs;
  t = arena.TakeArray<float>(slots * t_stride);
  pieces = arena.TakeArray<Piece>(slots);
}

AdapterProduct::AdapterProduct(const Options& options, Arena& arena, ThreadPool& pool)
    : o_(options),
      kernels_(TensorKernelsFor(options.target)),
      pool_(pool),
      scratch_(options, arena) {}

void AdapterProduct::Begin(std::span<const StepSequence> sequences) {
  num_pieces_ = 0;
  const uint64_t most = uint64_t{o_.max_rows} * o_.limits.max_adapters;
  for (const StepSequence& sequence : sequences) {
    KV_CHECK(sequence.adapters.size() <= o_.limits.max_adapters);
    for (const AppliedAdapter& applied : sequence.adapters) {
      KV_CHECK(num_pieces_ < most);
      scratch_.pieces[num_pieces_++] = {&applied, sequence.first_row, sequence.num_rows, 0};
    }
  }
  if (num_pieces_ > 0) Cut();
}

// Sorts pieces by digest and row, joins neighbours, and cuts them so that threads share them.
void AdapterProduct::Cut() {
  Piece* pieces = scratch_.pieces;
  std::sort(pieces, pieces + num_pieces_, [](const Piece& a, const Piece& b) {
    return std::tie(a.applied->digest, a.first_row) < std::tie(b.applied->digest, b.first_row);
  });
  uint32_t joined = 0;
  for (uint32_t i = 1; i < num_pieces_; ++i) {
    Piece& last = pieces[joined];
    if (pieces[i].applied->digest == last.applied->digest &&
        pieces[i].first_row == last.first_row + last.rows) {
      last.rows += pieces[i].rows;
    } else {
      pieces[++joined] = pieces[i];
    }
  }
  // Back to front, so that no piece is written before it was read: there is a slot for each row.
  uint32_t cut = 0, slots = 0;
  for (uint32_t i = 0; i <= joined; ++i) {
    cut += static_cast<uint32_t>(CeilDiv(pieces[i].rows, kPieceRows));
  }
  num_pieces_ = cut;
  for (uint32_t i = joined + 1; i-- > 0;) {
    const Piece whole = pieces[i];
    for (auto begin = static_cast<uint32_t>(RoundUp(whole.rows, kPieceRows)); begin > 0;) {
      begin -= kPieceRows;
      pieces[--cut] = {whole.applied, whole.first_row + begin,
                       std::min(kPieceRows, whole.rows - begin), 0};
    }
  }
  for (uint32_t i = 0; i < num_pieces_; ++i) {
    pieces[i].first_slot = slots;
    slots += pieces[i].rows;
  }
}

bool AdapterProduct::Changes(uint32_t layer, AdapterInput input) const {
  return std::ranges::any_of(
      pieces(), [&](const Piece& piece) { return Of(piece, layer, input).a != nullptr; });
}

// Computes t of a piece's rows, with the factors.
void AdapterProduct::Shrink(const PackedInput& packed, const Piece& piece, const float* x,
                            size_t x_stride) {
  const size_t stride = scratch_.t_stride;
  float* t = scratch_.t + piece.first_slot * stride;
  kernels_.mat_mul({x + piece.first_row * x_stride, x_stride, packed.a,
                    piece.applied->adapter->format(), nullptr, t, stride, piece.rows, packed.in,
                    packed.panels * kPanelOutputs, 0, packed.panels, false});
  for (const PackedPair& pair : packed.pairs) {
    if (pair.b == nullptr) continue;
    const float factor = LoraFactor(pair.scale, piece.applied->scale);
    for (uint32_t row = 0; row < piece.rows; ++row) {
      float* of_row = t + row * stride + pair.first;
      for (uint32_t i = 0; i < pair.rank; ++i) of_row[i] *= factor;
    }
  }
}

// Adds outputs of panels [panel, panel + kExpandPanels) of matrix `index`, of all pieces in order.
void AdapterProduct::Expand(uint32_t layer, AdapterInput input, uint32_t index, uint32_t panel,
                            const AdapterOutputs& out) {
  for (const Piece& piece : pieces()) {
    const PackedPair& pair = Of(piece, layer, input).pairs[index];
    if (pair.b == nullptr) continue;
    const auto end = static_cast<uint32_t>(CeilDiv(pair.out, kPanelOutputs));
    kernels_.mat_mul({scratch_.t + piece.first_slot * scratch_.t_stride + pair.first,
                      scratch_.t_stride, pair.b, piece.applied->adapter->format(), nullptr,
                      out[index].y + piece.first_row * out[index].stride, out[index].stride,
                      piece.rows, pair.rank, pair.out, panel, std::min(panel + kExpandPanels, end),
                      true});
  }
}

void AdapterProduct::Add(uint32_t layer, AdapterInput input, const float* x, size_t x_stride,
                         const AdapterOutputs& out) {
  uint64_t shrink_work = 0, expand_work = 0;
  std::array<uint32_t, kMaxAdapterOutputs> items{};
  const AppliedAdapter* last = nullptr;
  for (const Piece& piece : pieces()) {
    const PackedInput& packed = Of(piece, layer, input);
    const uint64_t panel_row = uint64_t{packed.panels} * kPanelOutputs;
    const uint64_t number_bytes = BytesOf(piece.applied->adapter->format());
    uint64_t bytes = panel_row * packed.in * number_bytes;
    shrink_work += piece.rows * panel_row * packed.in;
    for (size_t i = 0; i < packed.pairs.size(); ++i) {
      const PackedPair& pair = packed.pairs[i];
      const uint64_t panels = CeilDiv(pair.out, kPanelOutputs);
      items[i] = std::max(items[i], static_cast<uint32_t>(CeilDiv(panels, kExpandPanels)));
      expand_work += piece.rows * uint64_t{pair.rank} * pair.out;
      bytes += panels * kPanelOutputs * pair.rank * number_bytes;
    }
    if (last == nullptr || last->digest != piece.applied->digest) read_bytes_ += bytes;
    last = piece.applied;
  }
  if (shrink_work == 0) return;
  ForItems(num_pieces_, shrink_work, [&](uint32_t item) {
    const PackedInput& packed = Of(pieces()[item], layer, input);
    if (packed.a != nullptr) Shrink(packed, pieces()[item], x, x_stride);
  });
  ForItems(items[0] + items[1] + items[2], expand_work, [&](uint32_t item) {
    uint32_t index = 0;
    for (; item >= items[index]; ++index) item -= items[index];
    Expand(layer, input, index, item * kExpandPanels, out);
  });
}

template <typename Fn>
void AdapterProduct::ForItems(uint32_t items, uint64_t work, Fn&& fn) {
  // Each number of an adapter is used by few rows: one core waits for memory.
  if (work >= kMinParallelWork / 8) return pool_.Run(items, [&](uint32_t i, uint32_t) { fn(i); });
  for (uint32_t i = 0; i < items; ++i) fn(i);
}

}  // namespace kvasir
