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

// Writes rows of `columns` numbers into panels, each as `narrow` makes it; lanes without a row stay
// as they are.
template <typename Narrow>
void FillAdapterPanels(const std::vector<float>& rows, uint64_t columns, Narrow narrow,
                       std::byte* panels) {
  using Stored = decltype(narrow(0.0f));
  constexpr uint64_t kTogether = 16;  // narrowed in vectors; their panel's lines are written once
  auto* to = reinterpret_cast<Stored*>(panels);
  const uint64_t num_rows = rows.size() / columns;
  for (uint64_t first = 0; first < num_rows;
       first += kPanelOutputs, to += columns * kPanelOutputs) {
    const uint64_t lanes = std::min<uint64_t>(kPanelOutputs, num_rows - first);
    for (uint64_t i = 0; i < columns; i += kTogether) {
      Stored narrowed[kPanelOutputs][kTogether];
      const uint64_t n = std::min(kTogether, columns - i);
      for (uint64_t lane = 0; lane < lanes; ++lane) {
        const float* from = rows.data() + (first + lane) * columns + i;
        for (uint64_t j = 0; j < n; ++j) narrowed[lane][j] = narrow(from[j]);
      }
      for (uint64_t j = 0; j < n; ++j) {
        Stored* line = to + (i + j) * kPanelOutputs;
        for (uint64_t lane = 0; lane < lanes; ++lane) line[lane] = narrowed[lane][j];
      }
    }
  }
}

void FillAdapterPanels(const std::vector<float>& rows, uint64_t columns, WeightFormat format,
                       std::byte* panels) {
  const auto fill = [&](auto narrow) { FillAdapterPanels(rows, columns, narrow, panels); };
  if (format == WeightFormat::kF16) return fill([](float x) { return ToF16(x); });
  if (format == WeightFormat::kBf16) return fill([](float x) { return ToBf16(x); });
  fill([](float x) { return x; });
}

}  // namespace

// Takes the memory of all matrices, and fills them unless the arena only counts. Pairs of one input
// follow each other in LoraAdapter, so their A do in the arena.
void PackedAdapter::Fill(const LoraAdapter& adapter, Arena& arena, std::vector<Layer>& layers) {
  const bool fills = arena.size() > 0;
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
      if (fills) {
        FillAdapterPanels(pair.a, pair.in, adapter.format,
                          a + panel * PanelBytes(adapter.format, pair.in));
        FillAdapterPanels(pair.b, pair.rank, adapter.format, b);
      }
      panel += PanelsOf(pair.rank);
    }
    if (fills) layers[first.layer][static_cast<size_t>(input)] = packed;
  }
}

uint64_t PackedAdapter::BytesFor(const LoraAdapter& adapter) {
  Arena counter;
  std::vector<Layer> none;
  Fill(adapter, counter, none);
  return counter.used();
}

Result<std::shared_ptr<const PackedAdapter>> PackedAdapter::Create(const LoraAdapter& adapter,
                                                                   uint32_t num_layers) {
  KV_CHECK(!adapter.pairs.empty() && adapter.pairs.back().layer < num_layers);
  auto packed = std::make_shared<PackedAdapter>();
  KV_ASSIGN(packed->arena_, Arena::Create(BytesFor(adapter)));
  packed->format_ = adapter.format;
  packed->layers_.resize(num_layers);
  Fill(adapter, packed->arena_, packed->layers_);
  return packed;
}

}  // namespace kvasir
