#include "tensor/weight_format.h"

#include <cstring>

#include "simd/half.h"

namespace kvasir {
namespace {

// The place of a group of one lane.
struct Place {
  Place(const WeightLayout& layout, uint32_t lane, uint32_t group) {
    unit = size_t{group} / layout.groups() * layout.unit_bytes();
    in_unit = group % layout.groups();
    codes = unit + layout.codes_offset() + in_unit * layout.group_code_bytes() + lane * 4;
    const bool own = layout.scale == ScaleKind::kGroup;
    scale = unit + (own ? in_unit * 32 : 0) + lane * 2;
    minimum = own ? scale + layout.minimums_offset() : scale + 32;
    sub_scale = unit + layout.sub_scales_offset() + in_unit * 32 + lane;
  }
  size_t unit, in_unit, codes, scale, minimum, sub_scale;
};

void PutHalf(std::byte* at, uint16_t h) { std::memcpy(at, &h, 2); }
uint16_t GetHalf(const std::byte* at) {
  uint16_t h;
  std::memcpy(&h, at, 2);
  return h;
}
// Puts four bytes, one of each column of a quad. `row` counts the group's vectors of 64 bytes.
void PutQuad(std::byte* codes, uint32_t row, uint32_t quad) {
  std::memcpy(codes + row * 64, &quad, 4);
}
uint32_t GetQuad(const std::byte* codes, uint32_t row) {
  uint32_t quad;
  std::memcpy(&quad, codes + row * 64, 4);
  return quad;
}
constexpr uint32_t kLow4 = 0x0f0f0f0f, kLow2 = 0x03030303, kLow1 = 0x01010101;

void PutCodes(uint32_t bits, const uint8_t* from, std::byte* codes) {
  uint32_t quad[8];
  std::memcpy(quad, from, sizeof(quad));
  if (bits == 8) {
    for (uint32_t q = 0; q < 8; ++q) PutQuad(codes, q, quad[q]);
    return;
  }
  for (uint32_t q = 0; q < 4; ++q) {
    PutQuad(codes, q, (quad[q] & kLow4) | (quad[q + 4] & kLow4) << 4);
  }
  if (bits == 5) {
    uint32_t fifth = 0;
    for (uint32_t q = 0; q < 8; ++q) fifth |= (quad[q] >> 4 & kLow1) << q;
    PutQuad(codes, 4, fifth);
  } else if (bits == 6) {
    for (uint32_t h = 0; h < 2; ++h) {
      uint32_t high = 0;
      for (uint32_t i = 0; i < 4; ++i) high |= (quad[4 * h + i] >> 4 & kLow2) << 2 * i;
      PutQuad(codes, 4 + h, high);
    }
  }
}

void GetCodes(uint32_t bits, const std::byte* codes, uint8_t* to) {
  uint32_t quad[8];
  for (uint32_t q = 0; q < 8; ++q) {
    quad[q] = bits == 8 ? GetQuad(codes, q) : GetQuad(codes, q % 4) >> q / 4 * 4 & kLow4;
    if (bits == 5) quad[q] |= (GetQuad(codes, 4) >> q & kLow1) << 4;
    if (bits == 6) quad[q] |= (GetQuad(codes, 4 + q / 4) >> q % 4 * 2 & kLow2) << 4;
  }
  std::memcpy(to, quad, sizeof(quad));
}

}  // namespace

void PutGroup(WeightFormat format, std::byte* panel, uint32_t lane, uint32_t group,
              const WeightGroup& weights) {
  const WeightLayout layout = LayoutOf(format);
  const Place at(layout, lane, group);
  PutCodes(layout.code_bits, weights.codes, panel + at.codes);
  PutHalf(panel + at.scale, weights.d);
  if (layout.minimum) PutHalf(panel + at.minimum, weights.dmin);
  if (layout.scale == ScaleKind::kGroup) return;
  panel[at.sub_scale] = static_cast<std::byte>(weights.sub_scale[0]);
  panel[at.sub_scale + 16] = static_cast<std::byte>(
      layout.scale == ScaleKind::kSuper ? weights.sub_minimum : weights.sub_scale[1]);
}

WeightGroup GetGroup(WeightFormat format, const std::byte* panel, uint32_t lane, uint32_t group) {
  const WeightLayout layout = LayoutOf(format);
  const Place at(layout, lane, group);
  WeightGroup weights{};
  GetCodes(layout.code_bits, panel + at.codes, weights.codes);
  weights.d = GetHalf(panel + at.scale);
  if (layout.minimum) weights.dmin = GetHalf(panel + at.minimum);
  if (layout.scale == ScaleKind::kGroup) return weights;
  weights.sub_scale[0] = static_cast<uint8_t>(panel[at.sub_scale]);
  const auto second = static_cast<uint8_t>(panel[at.sub_scale + 16]);
  (layout.scale == ScaleKind::kSuper ? weights.sub_minimum : weights.sub_scale[1]) = second;
  return weights;
}

void WidenGroup(WeightFormat format, const WeightGroup& weights, float out[kGroup]) {
  const WeightLayout layout = LayoutOf(format);
  const float d = FromF16(weights.d);
  float scale[2] = {d, d}, minimum = FromF16(weights.dmin);
  if (layout.scale == ScaleKind::kSuper) {
    scale[0] = scale[1] = d * weights.sub_scale[0];
    minimum = -(minimum * weights.sub_minimum);
  } else if (layout.scale == ScaleKind::kSuperHalf) {
    for (int i = 0; i < 2; ++i) scale[i] = d * static_cast<int8_t>(weights.sub_scale[i]);
  }
  for (uint32_t i = 0; i < kGroup; ++i) {
    const int code = layout.table            ? kIq4NlLevels[weights.codes[i]]
                     : layout.code_bits == 8 ? static_cast<int8_t>(weights.codes[i])
                                             : weights.codes[i] - layout.zero;
    out[i] = scale[i / 16] * static_cast<float>(code);
    if (layout.minimum) out[i] = out[i] + minimum;
  }
}

}  // namespace kvasir
