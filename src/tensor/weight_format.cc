#include "tensor/weight_format.h"

#include <cstring>

#include "simd/half.h"

namespace kvasir {
namespace {

// Where a group of one lane lies.
struct Place {
  Place(const WeightLayout& layout, uint32_t lane, uint32_t group) : lane_(lane) {
    unit = size_t{group} / layout.groups() * layout.unit_bytes();
    in_unit = group % layout.groups();
    codes = unit + layout.codes_offset() + size_t{in_unit} * layout.group_code_bytes();
    const bool own = layout.scale == ScaleKind::kGroup;
    scale = unit + (own ? in_unit * 32 : 0) + lane * 2;
    minimum = own ? scale + layout.minimums_offset() : scale + 32;
    sub_scale = unit + layout.sub_scales_offset() + in_unit * 32 + lane;
  }
  // Byte of quad q, column j of it, counted from the group's vector `row` of 64 bytes.
  size_t Byte(uint32_t row, uint32_t j) const { return codes + row * 64 + lane_ * 4 + j; }

  size_t unit, in_unit, codes, scale, minimum, sub_scale;

 private:
  uint32_t lane_;
};

void PutHalf(std::byte* at, uint16_t h) { std::memcpy(at, &h, 2); }
uint16_t GetHalf(const std::byte* at) {
  uint16_t h;
  std::memcpy(&h, at, 2);
  return h;
}
// Sets bits [shift, shift + bits) of a byte.
void PutBits(std::byte& byte, uint32_t shift, uint32_t bits, uint32_t value) {
  const uint32_t mask = ((1u << bits) - 1) << shift;
  byte = static_cast<std::byte>((static_cast<uint32_t>(byte) & ~mask) | (value << shift & mask));
}
uint32_t GetBits(std::byte byte, uint32_t shift, uint32_t bits) {
  return static_cast<uint32_t>(byte) >> shift & ((1u << bits) - 1);
}

}  // namespace

void PutGroup(WeightFormat format, std::byte* panel, uint32_t lane, uint32_t group,
              const WeightGroup& weights) {
  const WeightLayout layout = LayoutOf(format);
  const Place at(layout, lane, group);
  for (uint32_t i = 0; i < kGroup; ++i) {
    const uint32_t q = i / 4, j = i % 4, code = weights.codes[i];
    if (layout.code_bits == 8) {
      panel[at.Byte(q, j)] = static_cast<std::byte>(code);
      continue;
    }
    PutBits(panel[at.Byte(q % 4, j)], q / 4 * 4, 4, code);
    if (layout.code_bits == 5) PutBits(panel[at.Byte(4, j)], q, 1, code >> 4);
    if (layout.code_bits == 6) PutBits(panel[at.Byte(4 + q / 4, j)], q % 4 * 2, 2, code >> 4);
  }
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
  for (uint32_t i = 0; i < kGroup; ++i) {
    const uint32_t q = i / 4, j = i % 4;
    uint32_t code;
    if (layout.code_bits == 8) {
      code = static_cast<uint32_t>(panel[at.Byte(q, j)]);
    } else {
      code = GetBits(panel[at.Byte(q % 4, j)], q / 4 * 4, 4);
      if (layout.code_bits == 5) code |= GetBits(panel[at.Byte(4, j)], q, 1) << 4;
      if (layout.code_bits == 6) code |= GetBits(panel[at.Byte(4 + q / 4, j)], q % 4 * 2, 2) << 4;
    }
    weights.codes[i] = static_cast<uint8_t>(code);
  }
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
