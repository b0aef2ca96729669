#include "backend/panel_filler.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "import/float_numbers.h"
#include "import/gguf_blocks.h"
#include "simd/half.h"
#include "tensor/quantise.h"

namespace kvasir {
namespace {

// Copies rows to columns of 16, a few numbers of each row at a time.
template <typename Bits>
uint32_t CopyRows(std::span<const PanelRow> rows, uint32_t k, std::byte* panel) {
  uint32_t bad = 0;
  for (uint32_t lane = 0; lane < rows.size(); ++lane) {
    bad |= uint32_t{!AllFinite(rows[lane].dtype, rows[lane].data, k)} << lane;
  }
  constexpr uint32_t kTile = 16;
  for (uint32_t begin = 0; begin < k; begin += kTile) {
    const uint32_t columns = std::min(kTile, k - begin);
    Bits tile[kTile][kPanelOutputs] = {};
    for (uint32_t lane = 0; lane < rows.size(); ++lane) {
      Bits numbers[kTile] = {};
      std::memcpy(numbers, rows[lane].data + size_t{begin} * sizeof(Bits), columns * sizeof(Bits));
      for (uint32_t i = 0; i < kTile; ++i) tile[i][lane] = numbers[i];
    }
    std::memcpy(panel + size_t{begin} * sizeof(tile[0]), tile, columns * sizeof(tile[0]));
  }
  return bad;
}

uint32_t TakeRowsApart(WeightFormat format, std::span<const PanelRow> rows, uint32_t k,
                       std::byte* panel) {
  const StoredBlock block = BlockOf(format);
  const uint32_t groups_each = block.columns / kGroup;
  uint32_t bad = 0;
  for (uint32_t lane = 0; lane < rows.size(); ++lane) {
    const std::byte* from = rows[lane].data;
    for (uint32_t begin = 0; begin < k; begin += block.columns, from += block.bytes) {
      WeightGroup groups[8];
      bad |= uint32_t{!TakeApart(format, from, groups)} << lane;
      for (uint32_t g = 0; g < groups_each; ++g) {
        PutGroup(format, panel, lane, begin / kGroup + g, groups[g]);
      }
    }
  }
  return bad;
}

uint32_t QuantiseRows(WeightFormat format, std::span<const PanelRow> rows, uint32_t k,
                      std::byte* panel) {
  const uint32_t limit = BitsOf(kMaxQuantised);
  uint32_t bad = 0;
  float x[kGroup][kPanelOutputs] = {};
  for (uint32_t begin = 0; begin < k; begin += kGroup) {
    const uint32_t columns = std::min(kGroup, k - begin);
    for (uint32_t lane = 0; lane < rows.size(); ++lane) {
      const PanelRow& row = rows[lane];
      float numbers[kGroup];
      Widen(row.dtype, row.data + StoredBytes(row.dtype, begin), columns, numbers);
      for (uint32_t i = 0; i < columns; ++i) {
        bad |= uint32_t{(BitsOf(numbers[i]) & 0x7fffffffu) > limit} << lane;
        x[i][lane] = numbers[i];
      }
    }
    if (bad != 0) return bad;
    WeightGroup groups[kPanelOutputs];
    QuantiseGroups(format, x, columns, groups);
    for (uint32_t lane = 0; lane < rows.size(); ++lane) {
      PutGroup(format, panel, lane, begin / kGroup, groups[lane]);
    }
  }
  return bad;
}

}  // namespace

uint32_t FillPanel(WeightFormat format, std::span<const PanelRow> rows, uint32_t k,
                   std::byte* panel) {
  KV_DCHECK(rows.size() <= kPanelOutputs);
  if (rows[0].dtype != format && LayoutOf(format).quantised()) {
    return QuantiseRows(format, rows, k, panel);
  }
  for (const PanelRow& row : rows) KV_DCHECK(row.dtype == format);
  switch (format) {
    case WeightFormat::kF32:
      return CopyRows<uint32_t>(rows, k, panel);
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      return CopyRows<uint16_t>(rows, k, panel);
    default:
      return TakeRowsApart(format, rows, k, panel);
  }
}

void WidenLane(WeightFormat format, const std::byte* panel, uint32_t lane, uint32_t k, float* out) {
  if (format == WeightFormat::kF32) {
    const float* column = reinterpret_cast<const float*>(panel) + lane;
    for (uint32_t i = 0; i < k; ++i) out[i] = column[size_t{i} * kPanelOutputs];
    return;
  }
  if (!LayoutOf(format).quantised()) {
    const uint16_t* column = reinterpret_cast<const uint16_t*>(panel) + lane;
    for (uint32_t i = 0; i < k; ++i) {
      const uint16_t bits = column[size_t{i} * kPanelOutputs];
      out[i] = format == WeightFormat::kF16 ? FromF16(bits) : FromBf16(bits);
    }
    return;
  }
  for (uint32_t begin = 0; begin < k; begin += kGroup) {
    float numbers[kGroup];
    WidenGroup(format, GetGroup(format, panel, lane, begin / kGroup), numbers);
    std::copy_n(numbers, std::min(kGroup, k - begin), out + begin);
  }
}

}  // namespace kvasir
