// Every quantised type, from random blocks to packed panels and back, against gguf-py's formulas
// (gguf/quants.py, class by class) written down here a second time.
#include "import/gguf_blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "base/random.h"
#include "simd/half.h"

namespace kvasir {
namespace {

using Block = std::vector<uint8_t>;

float Half(const Block& b, size_t at) {
  return FromF16(static_cast<uint16_t>(b[at] | b[at + 1] << 8));
}
int Nibble(const Block& b, size_t at, int column) {  // of 32 columns
  return column < 16 ? b[at + column] & 15 : b[at + column - 16] >> 4;
}
int Bit(const Block& b, size_t at, int column) { return b[at + column / 8] >> column % 8 & 1; }

// Returns the number of a column, in f32 arithmetic as the reference has it.
float Q4_0(const Block& b, int i) { return Half(b, 0) * float(Nibble(b, 2, i) - 8); }
float Q4_1(const Block& b, int i) { return Half(b, 0) * float(Nibble(b, 4, i)) + Half(b, 2); }
float Q5_0(const Block& b, int i) {
  return Half(b, 0) * float((Nibble(b, 6, i) | Bit(b, 2, i) << 4) - 16);
}
float Q5_1(const Block& b, int i) {
  return Half(b, 0) * float(Nibble(b, 8, i) | Bit(b, 4, i) << 4) + Half(b, 2);
}
float Q8_0(const Block& b, int i) { return Half(b, 0) * float(static_cast<int8_t>(b[2 + i])); }
float Iq4Nl(const Block& b, int i) {
  constexpr int kLevels[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                             1,    13,   25,  38,  53,  69,  89,  113};
  return Half(b, 0) * float(kLevels[Nibble(b, 2, i)]);
}
// Computes Q_K.get_scale_min: 12 bytes are d[4], m[4], m_d[4].
std::array<int, 2> ScaleAndMinimum(const Block& b, int group) {
  const auto d = [&](int i) { return b[4 + i]; };
  const auto m = [&](int i) { return b[8 + i]; };
  const auto m_d = [&](int i) { return b[12 + i]; };
  const int i = group % 4;
  if (group < 4) return {d(i) & 0x3f, m(i) & 0x3f};
  return {(m_d(i) & 0x0f) | (d(i) >> 2 & 0x30), m_d(i) >> 4 | (m(i) >> 2 & 0x30)};
}
float WithMinimum(const Block& b, int group, int code) {
  const auto [scale, minimum] = ScaleAndMinimum(b, group);
  return Half(b, 0) * float(scale) * float(code) - Half(b, 2) * float(minimum);
}
float Q4K(const Block& b, int i) {
  const int group = i / 32, byte = 16 + group / 2 * 32 + i % 32;
  return WithMinimum(b, group, group % 2 ? b[byte] >> 4 : b[byte] & 15);
}
float Q5K(const Block& b, int i) {
  const int group = i / 32, byte = 48 + group / 2 * 32 + i % 32;
  const int low = group % 2 ? b[byte] >> 4 : b[byte] & 15;
  return WithMinimum(b, group, low | (b[16 + i % 32] >> group & 1) << 4);
}
float Q6K(const Block& b, int i) {
  const int half = i / 128, j = i % 128 / 32, k = i % 32;
  const int ql = b[half * 64 + j % 2 * 32 + k], qh = b[128 + half * 32 + k];
  const int code = (j < 2 ? ql & 15 : ql >> 4) | (qh >> 2 * j & 3) << 4;
  return Half(b, 208) * float(static_cast<int8_t>(b[192 + i / 16])) * float(code - 32);
}

struct Type {
  DType dtype;
  float (*number)(const Block& block, int column);
  std::vector<size_t> halves;  // where scales lie
};
class GgufBlocks : public testing::TestWithParam<Type> {};
INSTANTIATE_TEST_SUITE_P(
    All, GgufBlocks,
    testing::Values(Type{DType::kQ8_0, Q8_0, {0}}, Type{DType::kQ4_0, Q4_0, {0}},
                    Type{DType::kQ4_1, Q4_1, {0, 2}}, Type{DType::kQ5_0, Q5_0, {0}},
                    Type{DType::kQ5_1, Q5_1, {0, 2}}, Type{DType::kQ4K, Q4K, {0, 2}},
                    Type{DType::kQ5K, Q5K, {0, 2}}, Type{DType::kQ6K, Q6K, {208}},
                    Type{DType::kIq4Nl, Iq4Nl, {0}}),
    [](const auto& info) { return std::string(LayoutOf(info.param.dtype).name); });

void PutHalf(Block& block, size_t at, uint16_t half) { std::memcpy(block.data() + at, &half, 2); }

// Draws random codes and sub-scales, finite scales of any exponent.
Block RandomBlock(const Type& type, Random& random) {
  Block block(BlockOf(type.dtype).bytes);
  for (uint8_t& byte : block) byte = static_cast<uint8_t>(random.Below(256));
  for (const size_t at : type.halves) {
    uint16_t half = static_cast<uint16_t>(random.Below(65536));
    if ((half & 0x7c00) == 0x7c00) half ^= 0x4000;
    PutHalf(block, at, half);
  }
  return block;
}
bool TakeApart(DType dtype, const Block& block, std::vector<WeightGroup>& groups) {
  groups.resize(BlockOf(dtype).columns / kGroup);
  return TakeApart(dtype, reinterpret_cast<const std::byte*>(block.data()), groups.data());
}

TEST_P(GgufBlocks, KeepEveryNumberThroughAPackedPanel) {
  const Type& type = GetParam();
  const uint32_t columns = BlockOf(type.dtype).columns, groups_each = columns / kGroup;
  const uint32_t blocks = 768 / columns;  // of a row: units of 64 and of 256 columns both repeat
  std::vector<std::byte> panel(PanelBytes(type.dtype, 768), std::byte{0xa5});
  Random random(7);
  std::vector<std::vector<Block>> rows(kPanelOutputs);
  for (uint32_t lane = 0; lane < kPanelOutputs; ++lane) {
    for (uint32_t b = 0; b < blocks; ++b) {
      const Block& block = rows[lane].emplace_back(RandomBlock(type, random));
      std::vector<WeightGroup> groups;
      ASSERT_TRUE(TakeApart(type.dtype, block, groups));
      for (uint32_t g = 0; g < groups_each; ++g) {
        PutGroup(type.dtype, panel.data(), lane, b * groups_each + g, groups[g]);
      }
    }
  }
  for (uint32_t lane = 0; lane < kPanelOutputs; ++lane) {
    for (uint32_t g = 0; g < 768 / kGroup; ++g) {
      float widened[kGroup];
      WidenGroup(type.dtype, GetGroup(type.dtype, panel.data(), lane, g), widened);
      const Block& block = rows[lane][g / groups_each];
      for (uint32_t i = 0; i < kGroup; ++i) {
        const float want = type.number(block, static_cast<int>(g % groups_each * kGroup + i));
        ASSERT_EQ(widened[i], want) << "lane " << lane << " group " << g << " column " << i;
      }
    }
  }
}

TEST_P(GgufBlocks, TellScalesThatAreNotFinite) {
  const Type& type = GetParam();
  Random random(8);
  std::vector<WeightGroup> groups;
  for (const size_t at : type.halves) {
    for (const uint16_t bad : {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff}) {
      Block block = RandomBlock(type, random);
      EXPECT_TRUE(TakeApart(type.dtype, block, groups));
      PutHalf(block, at, bad);
      EXPECT_FALSE(TakeApart(type.dtype, block, groups)) << "half at " << at;
    }
  }
}

TEST_P(GgufBlocks, TakeAtMostThreePercentMoreThanTheFile) {
  const DType dtype = GetParam().dtype;
  for (const uint32_t k : {256u, 2048u, 8192u}) {
    const double stored = double(StoredBytes(dtype, uint64_t{k} * kPanelOutputs));
    EXPECT_LE(double(PanelBytes(dtype, k)), 1.03 * stored) << k;
  }
}

}  // namespace
}  // namespace kvasir
