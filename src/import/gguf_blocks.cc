#include "import/gguf_blocks.h"

#include <cstring>

#include "base/check.h"

namespace kvasir {
namespace {

uint16_t HalfAt(const uint8_t* at) {
  uint16_t h;
  std::memcpy(&h, at, 2);
  return h;
}
bool Finite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// Unpacks 16 bytes: low nibbles are codes 0..15, high ones 16..31.
void Nibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = bytes[i] & 15;
    codes[i + 16] = bytes[i] >> 4;
  }
}

// Reads types of one group: d, perhaps a minimum, perhaps the fifth bits, the codes.
bool OneGroup(const WeightLayout& layout, const uint8_t* block, WeightGroup& group) {
  group.d = HalfAt(block);
  block += 2;
  if (layout.minimum) {
    group.dmin = HalfAt(block);
    block += 2;
  }
  if (layout.code_bits == 8) {
    std::memcpy(group.codes, block, kGroup);
  } else if (layout.code_bits == 4) {
    Nibbles(block, group.codes);
  } else {
    uint32_t fifth;
    std::memcpy(&fifth, block, 4);
    Nibbles(block + 4, group.codes);
    for (uint32_t i = 0; i < kGroup; ++i) group.codes[i] |= (fifth >> i & 1) << 4;
  }
  return Finite(group.d) && Finite(group.dmin);
}

// Reads Q4_K and Q5_K.
bool SuperBlock(const WeightLayout& layout, const uint8_t* block, WeightGroup* groups) {
  const uint16_t d = HalfAt(block), dmin = HalfAt(block + 2);
  const uint8_t* packed = block + 4;  // 8 scales and 8 minimums
  const uint8_t* fifth = layout.code_bits == 5 ? packed + 12 : nullptr;
  const uint8_t* codes = packed + (layout.code_bits == 5 ? 44 : 12);
  for (uint32_t g = 0; g < 8; ++g) {
    WeightGroup& group = groups[g];
    group.d = d;
    group.dmin = dmin;
    // The first four have six bits of a byte; the others' low four bits share a byte, their high
    // two bits are the spare ones of the first eight bytes.
    if (g < 4) {
      group.sub_scale[0] = packed[g] & 63;
      group.sub_minimum = packed[g + 4] & 63;
    } else {
      group.sub_scale[0] = (packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4;
      group.sub_minimum = (packed[g + 4] >> 4) | (packed[g] >> 6) << 4;
    }
    const uint8_t* bytes = codes + g / 2 * 32;
    const uint32_t shift = g % 2 * 4;
    for (uint32_t i = 0; i < kGroup; ++i) group.codes[i] = bytes[i] >> shift & 15;
    if (fifth == nullptr) continue;
    for (uint32_t i = 0; i < kGroup; ++i) group.codes[i] |= (fifth[i] >> g & 1) << 4;
  }
  return Finite(d) && Finite(dmin);
}

bool SixBits(const uint8_t* block, WeightGroup* groups) {
  const uint16_t d = HalfAt(block + 208);
  for (uint32_t g = 0; g < 8; ++g) {
    WeightGroup& group = groups[g];
    const uint32_t half = g / 4, j = g % 4;
    const uint8_t* low = block + half * 64 + j % 2 * 32;
    const uint8_t* high = block + 128 + half * 32;
    const uint32_t low_shift = j / 2 * 4, high_shift = j * 2;
    for (uint32_t i = 0; i < kGroup; ++i) {
      group.codes[i] = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
    }
    group.d = d;
    std::memcpy(group.sub_scale, block + 192 + g * 2, 2);
  }
  return Finite(d);
}

}  // namespace

bool TakeApart(DType dtype, const std::byte* block, WeightGroup* groups) {
  const WeightLayout layout = LayoutOf(dtype);
  KV_DCHECK(layout.quantised());
  const auto* bytes = reinterpret_cast<const uint8_t*>(block);
  if (layout.scale == ScaleKind::kGroup) return OneGroup(layout, bytes, *groups);
  return layout.scale == ScaleKind::kSuper ? SuperBlock(layout, bytes, groups)
                                           : SixBits(bytes, groups);
}

}  // namespace kvasir
