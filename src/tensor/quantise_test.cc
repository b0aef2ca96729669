#include "tensor/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "simd/half.h"

namespace kvasir {
namespace {

struct Group {
  float x[kGroup][kPanelOutputs];
};

// Draws near normal numbers; lanes have deviations from 2^-20 to 2^10 and means of up to five of
// them.
Group NearNormalGroup(Random& random) {
  Group group;
  for (uint32_t lane = 0; lane < kPanelOutputs; ++lane) {
    const double scale = std::ldexp(1, static_cast<int>(random.Below(31)) - 20);
    const double mean = random.Below(2) ? (random.Uniform() * 10 - 5) * scale : 0;
    for (uint32_t i = 0; i < kGroup; ++i) {
      double sum = -6;
      for (int k = 0; k < 12; ++k) sum += random.Uniform();
      group.x[i][lane] = static_cast<float>(sum * scale + mean);
    }
  }
  return group;
}

std::vector<WeightGroup> Quantised(WeightFormat format, const Group& group,
                                   uint32_t columns = kGroup) {
  std::vector<WeightGroup> groups(kPanelOutputs);
  QuantiseGroups(format, group.x, columns, groups.data());
  return groups;
}

// Returns the sum of squared errors of a lane.
double ErrorOf(WeightFormat format, const WeightGroup& group, const Group& numbers, uint32_t lane) {
  float widened[kGroup];
  WidenGroup(format, group, widened);
  double error = 0;
  for (uint32_t i = 0; i < kGroup; ++i) {
    error += std::pow(double(widened[i]) - numbers.x[i][lane], 2);
  }
  return error;
}

// Does what ggml's quantize_row_q8_0_ref and quantize_row_q4_0_ref do.
WeightGroup Reference(WeightFormat format, const Group& group, uint32_t lane) {
  WeightGroup out{};
  float largest = 0, number = 0;
  for (uint32_t i = 0; i < kGroup; ++i) {
    if (largest < std::fabs(group.x[i][lane])) {
      largest = std::fabs(group.x[i][lane]);
      number = group.x[i][lane];
    }
  }
  const float d = format == WeightFormat::kQ8_0 ? largest / 127 : number / -8;
  const float inverse = d != 0 ? 1.0f / d : 0.0f;
  out.d = ToF16(d);
  for (uint32_t i = 0; i < kGroup; ++i) {
    const float scaled = group.x[i][lane] * inverse;
    out.codes[i] =
        format == WeightFormat::kQ8_0
            ? static_cast<uint8_t>(static_cast<int8_t>(std::round(scaled)))
            : static_cast<uint8_t>(std::min<int>(15, static_cast<int8_t>(scaled + 8.5f)));
  }
  return out;
}

TEST(Quantise, Q8_0AndQ4_0AreGgmls) {
  Random random(1);
  for (const WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kQ4_0}) {
    for (int round = 0; round < 200; ++round) {
      Group group = NearNormalGroup(random);
      for (uint32_t i = 0; i < kGroup; ++i) {  // halves of codes, both signs of a largest number
        group.x[i][0] = static_cast<float>(static_cast<int>(random.Below(255)) - 127) / 2;
        group.x[i][1] = random.Below(2) ? 8.0f : -8.0f;
        group.x[i][2] = 0;
      }
      const auto got = Quantised(format, group);
      for (uint32_t lane = 0; lane < kPanelOutputs; ++lane) {
        const WeightGroup want = Reference(format, group, lane);
        EXPECT_EQ(got[lane].d, want.d);
        EXPECT_EQ(got[lane].dmin, 0);
        ASSERT_TRUE(std::ranges::equal(got[lane].codes, want.codes)) << "lane " << lane;
      }
    }
  }
}

class Searched : public testing::TestWithParam<WeightFormat> {};
INSTANTIATE_TEST_SUITE_P(All, Searched, testing::Values(WeightFormat::kI8, WeightFormat::kQ4_1));

TEST_P(Searched, NeverWorseThanTheRangeOfTheNumbers) {
  const WeightFormat format = GetParam();
  const int low_code = format == WeightFormat::kI8 ? -128 : 0;
  const int levels = format == WeightFormat::kI8 ? 255 : 15;
  Random random(2);
  double searched = 0, plain_error = 0;
  for (int round = 0; round < 300; ++round) {
    const Group group = NearNormalGroup(random);
    const auto got = Quantised(format, group);
    for (uint32_t lane = 0; lane < kPanelOutputs; ++lane) {
      float low = group.x[0][lane], high = low;
      for (const auto& row : group.x) {
        low = std::min(low, row[lane]);
        high = std::max(high, row[lane]);
      }
      WeightGroup plain{};
      plain.d = ToF16((high - low) / static_cast<float>(levels));
      const float d = FromF16(plain.d);
      plain.dmin = ToF16(low - d * static_cast<float>(low_code));
      const float m = FromF16(plain.dmin);
      for (uint32_t i = 0; i < kGroup; ++i) {
        const double code = d == 0 ? 0 : std::nearbyint((double(group.x[i][lane]) - m) / d);
        plain.codes[i] = static_cast<uint8_t>(
            static_cast<int>(std::clamp<double>(code, low_code, low_code + levels)));
      }
      const double error = ErrorOf(format, got[lane], group, lane);
      const double limit = ErrorOf(format, plain, group, lane);
      ASSERT_LE(error, limit * (1 + 1e-5) + 1e-30) << "round " << round << " lane " << lane;
      if (lane != 0) continue;
      const double spread = std::pow(double(high) - low, 2);
      searched += error / spread;
      plain_error += limit / spread;
    }
  }
  EXPECT_LT(searched, plain_error * 0.92);
}

TEST_P(Searched, EachNumberIsWithinAStepOrTwo) {
  const float levels = GetParam() == WeightFormat::kI8 ? 255 : 15;
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    const Group group = NearNormalGroup(random);
    const auto got = Quantised(GetParam(), group);
    for (uint32_t lane = 0; lane < kPanelOutputs; ++lane) {
      float low = group.x[0][lane], high = low, widened[kGroup];
      for (const auto& row : group.x) {
        low = std::min(low, row[lane]);
        high = std::max(high, row[lane]);
      }
      WidenGroup(GetParam(), got[lane], widened);
      // Clipped numbers are up to a step and a half off; scale and minimum are f16.
      const float largest = std::max(std::fabs(low), std::fabs(high));
      const float bound = 1.6f * (high - low) / levels + largest * 0x1p-11f + levels * 0x1p-24f;
      for (uint32_t i = 0; i < kGroup; ++i) {
        ASSERT_LE(std::fabs(widened[i] - group.x[i][lane]), bound) << "lane " << lane;
      }
    }
  }
}

TEST(Quantise, ConstantZeroTinyAndHugeGroups) {
  for (const WeightFormat format :
       {WeightFormat::kI8, WeightFormat::kQ4_1, WeightFormat::kQ8_0, WeightFormat::kQ4_0}) {
    Group group{};
    const float constants[] = {0.0f,     -0.0f,  0.5f,   -3.0f,   65504.0f, -65504.0f,
                               0x1p-24f, 1e-30f, 1e-44f, -1e-40f, 1000.0f,  0.25f};
    for (uint32_t lane = 0; lane < std::size(constants); ++lane) {
      for (auto& row : group.x) row[lane] = constants[lane];
    }
    for (uint32_t i = 0; i < kGroup; ++i) group.x[i][12] = i % 2 ? 65504.0f : -65504.0f;
    const auto got = Quantised(format, group);
    for (uint32_t lane = 0; lane < 13; ++lane) {
      float widened[kGroup];
      WidenGroup(format, got[lane], widened);
      for (uint32_t i = 0; i < kGroup; ++i) {
        const float x = group.x[i][lane];
        ASSERT_NEAR(widened[i], x, std::fabs(x) * 0.13 + 0x1p-24) << int(format) << " " << lane;
      }
    }
  }
}

TEST(Quantise, ColumnsBeyondTheLastChangeNothing) {
  Random random(4);
  for (const WeightFormat format :
       {WeightFormat::kI8, WeightFormat::kQ4_1, WeightFormat::kQ8_0, WeightFormat::kQ4_0}) {
    for (uint32_t columns = 1; columns <= kGroup; ++columns) {
      Group group = NearNormalGroup(random);
      const auto want = Quantised(format, group, columns);
      for (uint32_t i = columns; i < kGroup; ++i) {
        std::ranges::fill(group.x[i], std::numeric_limits<float>::quiet_NaN());
      }
      const auto got = Quantised(format, group, columns);
      for (uint32_t lane = 0; lane < kPanelOutputs; ++lane) {
        EXPECT_EQ(got[lane].d, want[lane].d);
        EXPECT_EQ(got[lane].dmin, want[lane].dmin);
        ASSERT_TRUE(std::ranges::equal(got[lane].codes, want[lane].codes));
        for (uint32_t i = columns; i < kGroup; ++i) ASSERT_EQ(got[lane].codes[i], 0);
      }
    }
  }
}

// A new digest is a new version of ChosenDigest (backend/weight_choice.h).
TEST(Quantise, MakesTheSameBytesEverywhere) {
  Random random(5);
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a: the digests need a library, aarch64 tests none
  const auto add = [&](uint64_t x) {
    for (int i = 0; i < 8; ++i) hash = (hash ^ (x >> (8 * i) & 0xff)) * 0x100000001b3;
  };
  for (int round = 0; round < 100; ++round) {
    const Group group = NearNormalGroup(random);
    for (const WeightFormat format :
         {WeightFormat::kI8, WeightFormat::kQ4_1, WeightFormat::kQ8_0, WeightFormat::kQ4_0}) {
      for (const WeightGroup& g : Quantised(format, group)) {
        for (const auto code : g.codes) add(static_cast<uint64_t>(code));
        add(g.d);
        add(g.dmin);
      }
    }
  }
  EXPECT_EQ(hash, 16833240648520860913u);
}

}  // namespace
}  // namespace kvasir
