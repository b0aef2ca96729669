// WeightFormat: the memory layout of a weight matrix. Outputs come in panels of 16, one lane each,
// so that a lane sums one output for any width of a register.
//
//   f32, f16, bf16   panel = [k][16] numbers
//   quantised        panel = units of unit_k columns, each a multiple of 64 bytes:
//     unit  = scales [minimums] [sub_scales] codes
//     scales      f16 [2 groups][16] where a group of 32 columns has its own; else f16 d[16],
//                 then f16 dmin[16] (zeros where the format has no minimum)
//     minimums    f16 [2 groups][16]: only formats with a minimum and a scale a group
//     sub_scales  [8 groups][2][16] bytes: u8 scale, u8 minimum; Q6_K: i8 of each 16 columns
//     codes       [groups], a group = 8 quads; quad q of a group holds columns 4q..4q+3 as
//                 [16 outputs][4]:
//       8 bits  [8 quads][64 bytes], signed
//       4 bits  [4][64 bytes]: low nibble quad i, high nibble quad i + 4, unsigned
//       5 bits  4 bits as above, then [64 bytes]: bit q is bit 4 of quad q
//       6 bits  4 bits as above, then [2][64 bytes]: bits 2i, 2i+1 of byte h are bits 4, 5 of
//               quad 4h + i
// A weight is (code - zero) * scale [+ minimum], scale = d * sub_scale, minimum = -dmin *
// sub_minimum where those exist. Columns beyond k and outputs beyond the last are zero bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvasir {

// Stored in model images: never renumber.
enum class WeightFormat : uint8_t {
  kF32 = 1,
  kF16 = 2,
  kBf16 = 3,
  kI8 = 4,  // Kvasir's: Q8_0 with a minimum
  kQ8_0 = 5,
  kQ4_0 = 6,
  kQ4_1 = 7,  // also the result of --weights i4
  kQ5_0 = 8,
  kQ5_1 = 9,
  kQ4K = 10,
  kQ5K = 11,
  kQ6K = 12,
  kIq4Nl = 13,
};

inline constexpr uint32_t kPanelOutputs = 16;
inline constexpr uint32_t kGroup = 32;  // columns that share a scale, and an activation's

enum class ScaleKind : uint8_t { kGroup, kSuper, kSuperHalf };  // see the grammar

struct WeightLayout {
  std::string_view name;   // "Q4_K"
  uint32_t code_bits = 0;  // 0: not quantised
  int32_t zero = 0;        // subtracted from a code
  ScaleKind scale = ScaleKind::kGroup;
  bool minimum = false;
  bool table = false;  // codes index kIq4NlLevels

  constexpr bool quantised() const { return code_bits != 0; }
  constexpr uint32_t unit_k() const { return scale == ScaleKind::kGroup ? 64 : 256; }
  constexpr uint32_t groups() const { return unit_k() / kGroup; }  // of a unit
  constexpr uint32_t group_code_bytes() const { return 64 * code_bits; }
  constexpr uint32_t minimums_offset() const { return 64; }
  constexpr uint32_t sub_scales_offset() const { return 64; }
  constexpr uint32_t codes_offset() const {
    return scale != ScaleKind::kGroup ? 64 + 256 : minimum ? 128 : 64;
  }
  constexpr uint32_t unit_bytes() const { return codes_offset() + groups() * group_code_bytes(); }
};

constexpr WeightLayout LayoutOf(WeightFormat format) {
  using enum WeightFormat;
  switch (format) {
    case kF32:
      return {"F32"};
    case kF16:
      return {"F16"};
    case kBf16:
      return {"BF16"};
    case kI8:
      return {"I8", 8, 0, ScaleKind::kGroup, true};
    case kQ8_0:
      return {"Q8_0", 8};
    case kQ4_0:
      return {"Q4_0", 4, 8};
    case kQ4_1:
      return {"Q4_1", 4, 0, ScaleKind::kGroup, true};
    case kQ5_0:
      return {"Q5_0", 5, 16};
    case kQ5_1:
      return {"Q5_1", 5, 0, ScaleKind::kGroup, true};
    case kQ4K:
      return {"Q4_K", 4, 0, ScaleKind::kSuper, true};
    case kQ5K:
      return {"Q5_K", 5, 0, ScaleKind::kSuper, true};
    case kQ6K:
      return {"Q6_K", 6, 32, ScaleKind::kSuperHalf};
    case kIq4Nl:
      return {"IQ4_NL", 4, 0, ScaleKind::kGroup, false, true};
  }
  return {};
}

// The levels of IQ4_NL (llama.cpp, ggml-common.h).
inline constexpr int8_t kIq4NlLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                            1,    13,   25,  38,  53,  69,  89,  113};

// Returns the bytes of a number of an unquantised format.
constexpr uint32_t BytesOf(WeightFormat format) { return format == WeightFormat::kF32 ? 4 : 2; }

// Returns the bytes of a panel of k columns.
constexpr uint64_t PanelBytes(WeightFormat format, uint32_t k) {
  const WeightLayout layout = LayoutOf(format);
  if (!layout.quantised()) return uint64_t{k} * kPanelOutputs * BytesOf(format);
  return (uint64_t{k} + layout.unit_k() - 1) / layout.unit_k() * layout.unit_bytes();
}

// A group of one output in a packed panel: codes as the format says (signed ones as int8 in a
// byte), scales as stored. Parts that a format does not have are ignored when written and 0 when
// read.
struct WeightGroup {
  uint8_t codes[kGroup];
  uint16_t d = 0, dmin = 0;       // f16; of the unit where sub-scales exist
  uint8_t sub_scale[2] = {0, 0};  // kSuper: [0]; kSuperHalf: int8 of each half
  uint8_t sub_minimum = 0;
};

// group: counted from the panel's first column. O(32).
void PutGroup(WeightFormat format, std::byte* panel, uint32_t lane, uint32_t group,
              const WeightGroup& weights);
WeightGroup GetGroup(WeightFormat format, const std::byte* panel, uint32_t lane, uint32_t group);

// Computes the 32 numbers of a group: scale * (code - zero), then + minimum, each step rounded to
// f32.
void WidenGroup(WeightFormat format, const WeightGroup& weights, float out[kGroup]);

}  // namespace kvasir
