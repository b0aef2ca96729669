#include "backend/packed_adapter.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/result.h"
#include "simd/half.h"
#include "tensor/weight_format.h"

namespace kvasir {
namespace {

struct AdapterPlace {
  AdapterInput input;
  uint32_t index;  // of PackedInput::pairs
};
AdapterPlace PlaceOf(LoraTarget target) {
  switch (target) {
    case LoraTarget::kQ:
      return {AdapterInput::kQkv, 0};
    case LoraTarget::kK:
      return {AdapterInput::kQkv, 1};
    case LoraTarget::kV:
      return {AdapterInput::kQkv, 2};
    case LoraTarget::kO:
      return {AdapterInput::kO, 0};
    case LoraTarget::kGate:
      return {AdapterInput::kGateUp, 0};
    case LoraTarget::kUp:
      return {AdapterInput::kGateUp, 1};
    case LoraTarget::kDown:
      break;
  }
  return {AdapterInput::kDown, 0};
}

uint64_t PanelsOf(uint64_t outputs) { return CeilDiv(outputs, kPanelOutputs); }

// Writes up to kPanelOutputs rows of `columns` numbers into a panel, each as `narrow` makes it;
// lanes without a row stay as they are.
template <typename Narrow>
void FillAdapterPanel(std::span<const float> rows, uint64_t columns, Narrow narrow,
                      std::byte* panel) {
  using Stored = decltype(narrow(0.0f));
  constexpr uint64_t kTogether = 16;  // narrowed in vectors; their panel's lines are written once
  auto* to = reinterpret_cast<Stored*>(panel);
  const uint64_t lanes = rows.size() / columns;
  for (uint64_t i = 0; i < columns; i += kTogether) {
    Stored narrowed[kPanelOutputs][kTogether];
    const uint64_t n = std::min(kTogether, columns - i);
    for (uint64_t lane = 0; lane < lanes; ++lane) {
      const float* from = rows.data() + lane * columns + i;
      for (uint64_t j = 0; j < n; ++j) narrowed[lane][j] = narrow(from[j]);
    }
    for (uint64_t j = 0; j < n; ++j) {
      Stored* line = to + (i + j) * kPanelOutputs;
      for (uint64_t lane = 0; lane < lanes; ++lane) line[lane] = narrowed[lane][j];
    }
  }
}

void FillAdapterPanel(std::span<const float> rows, uint64_t columns, WeightFormat format,
                      std::byte* panel) {
  const auto fill = [&](auto narrow) { FillAdapterPanel(rows, columns, narrow, panel); };
  if (format == WeightFormat::kF16) return fill([](float x) { return ToF16(x); });
  if (format == WeightFormat::kBf16) return fill([](float x) { return ToBf16(x); });
  fill([](float x) { return x; });
}

}  // namespace

// Takes the memory of all matrices. Says in `layers` where they lie, and returns the first panels
// of each pair, unless the arena only counts. Pairs of one input follow each other in LoraAdapter,
// so their A do in the arena.
std::vector<PackedAdapter::Panels> PackedAdapter::Lay(const LoraAdapter& adapter, Arena& arena,
                                                      std::vector<Layer>& layers) {
  const bool counts = arena.size() == 0;
  std::vector<Panels> of_pairs;
  for (size_t begin = 0; begin < adapter.pairs.size();) {
    const LoraPair& first = adapter.pairs[begin];
    const AdapterInput input = PlaceOf(first.target).input;
    size_t end = begin;
    uint32_t panels = 0;
    for (; end < adapter.pairs.size() && adapter.pairs[end].layer == first.layer &&
           PlaceOf(adapter.pairs[end].target).input == input;
         ++end) {
      panels += static_cast<uint32_t>(PanelsOf(adapter.pairs[end].rank));
    }
    std::byte* a = arena.Take(panels * PanelBytes(adapter.format, first.in));
    PackedInput packed{.a = a, .panels = panels, .in = first.in};
    for (uint64_t panel = 0; begin < end; ++begin) {
      const LoraPair& pair = adapter.pairs[begin];
      std::byte* b = arena.Take(PanelsOf(pair.out) * PanelBytes(adapter.format, pair.rank));
      packed.pairs[PlaceOf(pair.target).index] = {
          b, pair.rank, pair.out, static_cast<uint32_t>(panel * kPanelOutputs), pair.scale};
      if (!counts) of_pairs.push_back({a + panel * PanelBytes(adapter.format, pair.in), b});
      panel += PanelsOf(pair.rank);
    }
    if (!counts) layers[first.layer][static_cast<size_t>(input)] = packed;
  }
  return of_pairs;
}

uint64_t PackedAdapter::BytesFor(const LoraAdapter& adapter) {
  Arena counter;
  std::vector<Layer> none;
  Lay(adapter, counter, none);
  return counter.used();
}

Result<std::shared_ptr<const PackedAdapter>> PackedAdapter::Create(const LoraAdapter& adapter,
                                                                   uint32_t num_layers) {
  KV_CHECK(!adapter.pairs.empty() && adapter.pairs.back().layer < num_layers);
  auto packed = std::make_shared<PackedAdapter>();
  KV_ASSIGN(packed->arena_, Arena::Create(BytesFor(adapter)));
  packed->format_ = adapter.format;
  packed->layers_.resize(num_layers);
  const std::vector<Panels> panels = Lay(adapter, packed->arena_, packed->layers_);
  const auto take = [&](size_t i, LoraMatrix matrix, uint64_t first, std::span<const float> rows) {
    const bool is_a = matrix == LoraMatrix::kA;
    const uint32_t columns = is_a ? adapter.pairs[i].in : adapter.pairs[i].rank;
    FillAdapterPanel(rows, columns, adapter.format,
                     (is_a ? panels[i].a : panels[i].b) +
                         first / kPanelOutputs * PanelBytes(adapter.format, columns));
  };
  KV_ASSIGN(packed->numbers_, ReadLoraNumbers(adapter, take));
  for (const LoraPair& pair : adapter.pairs) packed->pair_scales_.push_back(pair.scale);
  return packed;
}

}  // namespace kvasir
