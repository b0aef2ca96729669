#include "backend/adapter_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "import/lora_for_test.h"
#include "simd/half.h"

namespace kvasir {
namespace {

std::vector<float> AdapterNumbers(Random& random, size_t count,
                                  WeightFormat format = WeightFormat::kF32) {
  std::vector<float> x(count);
  for (float& v : x) {
    v = static_cast<float>(random.Uniform() * 2 - 1);
    if (random.Below(8) == 0) v *= 0x1p-20f;  // of no exponent in f16
    if (format == WeightFormat::kF16) v = FromF16(ToF16(v));
    if (format == WeightFormat::kBf16) v = FromBf16(ToBf16(v));
  }
  return x;
}

// q and v of one layer, with inputs and outputs that are multiples of nothing.
constexpr uint32_t kIn = 60, kQOut = 100, kVOut = 37;

LoraAdapter MakeAdapter(Random& random, uint32_t rank, WeightFormat format) {
  std::vector<LoraPair> pairs;
  for (const auto& [target, out] :
       {std::pair(LoraTarget::kQ, kQOut), std::pair(LoraTarget::kV, kVOut)}) {
    pairs.push_back(
        {.layer = 1, .target = target, .rank = rank, .in = kIn, .out = out, .scale = 0.5});
  }
  LoraAdapter adapter =
      LoraOf(pairs, AdapterNumbers(random, size_t{rank} * (2 * kIn + kQOut + kVOut), format));
  adapter.format = format;
  return adapter;
}

// Adds B (factor * A x) to y in plain arithmetic, in the order that the class comment gives.
void AddByDefinition(const LoraPair& pair, const LoraNumbers& numbers, double scale, const float* x,
                     float* y) {
  std::vector<float> t(pair.rank);
  for (uint32_t r = 0; r < pair.rank; ++r) {
    for (uint32_t i = 0; i < pair.in; ++i) t[r] = std::fma(x[i], numbers.a[r * pair.in + i], t[r]);
  }
  for (float& v : t) v *= LoraFactor(pair.scale, scale);
  for (uint32_t row = 0; row < pair.out; ++row) {
    float sum = 0;
    const float* of_row = &numbers.b[row * pair.rank];
    for (uint32_t r = 0; r < pair.rank; ++r) sum = std::fma(t[r], of_row[r], sum);
    y[row] += sum;
  }
}

class AdapterProducts : public testing::TestWithParam<Target> {};

TEST_P(AdapterProducts, ComputeTheDefinitionForEachRowWhateverTheStepHolds) {
  constexpr uint32_t kMaxRows = 150, kStride = kQOut + kVOut + 5;
  Random random(11);
  std::vector<WholeLora> adapters;
  std::vector<std::shared_ptr<const PackedAdapter>> packed;
  using enum WeightFormat;
  for (const auto& [rank, format] : {std::pair(1u, kF32), {7u, kF16}, {16u, kBf16}, {40u, kF16}}) {
    adapters.push_back(*ReadWhole(MakeAdapter(random, rank, format)));
    auto made = PackedAdapter::Create(adapters.back(), 2);
    ASSERT_TRUE(made);
    ASSERT_EQ((*made)->bytes(), PackedAdapter::BytesFor(adapters.back()));
    ASSERT_EQ((*made)->DigestWith(1), adapters.back().DigestWith(1));
    packed.push_back(*made);
  }
  const AdapterProduct::Options options{GetParam(), kMaxRows, {.max_rank = 40, .max_adapters = 3}};
  Arena counter;
  const AdapterProduct::Scratch count(options, counter);
  Arena arena = std::move(*Arena::Create(counter.used()));
  ThreadPool pool(3, nullptr);
  AdapterProduct product(options, arena, pool);
  for (int repeat = 0; repeat < 60; ++repeat) {
    // Lists of up to 3 adapters, the same one twice among them.
    std::vector<std::vector<AppliedAdapter>> lists;
    std::vector<StepSequence> sequences;
    uint32_t rows = 0;
    while (rows < kMaxRows && sequences.size() < 8) {
      const uint32_t n = std::min<uint32_t>(kMaxRows - rows, 1 + uint32_t(random.Below(70)));
      sequences.push_back({{}, 0, rows, random.Below(2) == 0 ? 1 : n});
      rows += sequences.back().num_rows;
      std::vector<AppliedAdapter>& list = lists.emplace_back();
      for (uint64_t i = random.Below(4); i > 0; --i) {
        const size_t which = random.Below(adapters.size());
        const double scale = random.Below(2) == 0 ? 1 : -1.5;
        list.push_back({packed[which].get(), scale, packed[which]->DigestWith(scale)});
      }
      std::ranges::sort(list, {}, &AppliedAdapter::digest);
    }
    for (size_t i = 0; i < sequences.size(); ++i) sequences[i].adapters = lists[i];
    const auto x = AdapterNumbers(random, size_t{rows} * kIn);
    auto y = AdapterNumbers(random, size_t{rows} * kStride);
    auto expected = y;
    for (const StepSequence& sequence : sequences) {
      for (const AppliedAdapter& applied : sequence.adapters) {
        const auto at = std::ranges::find(packed, applied.adapter,
                                          [](const auto& pointer) { return pointer.get(); });
        const WholeLora& source = adapters[static_cast<size_t>(at - packed.begin())];
        for (uint32_t row = sequence.first_row; row < sequence.first_row + sequence.num_rows;
             ++row) {
          float* of_row = &expected[row * kStride];
          AddByDefinition(source.pairs[0], source.read[0], applied.scale, &x[row * kIn], of_row);
          AddByDefinition(source.pairs[1], source.read[1], applied.scale, &x[row * kIn],
                          of_row + kQOut);
        }
      }
    }
    product.Begin(sequences);
    const bool any = std::ranges::any_of(lists, [](const auto& list) { return !list.empty(); });
    EXPECT_EQ(product.Changes(1, AdapterInput::kQkv), any);
    EXPECT_FALSE(product.Changes(0, AdapterInput::kQkv));
    EXPECT_FALSE(product.Changes(1, AdapterInput::kDown));
    const AdapterOutputs out = {{{y.data(), kStride}, {}, {y.data() + kQOut, kStride}}};
    product.Add(0, AdapterInput::kQkv, x.data(), kIn, out);
    product.Add(1, AdapterInput::kDown, x.data(), kIn, out);
    product.Add(1, AdapterInput::kQkv, x.data(), kIn, out);
    ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0)
        << "repeat " << repeat << ", " << rows << " rows";
  }
}

TEST(PackedAdapter, KeepsNumbersAsTheyWereStored) {
  Random random(5);
  const uint64_t wide = PackedAdapter::BytesFor(MakeAdapter(random, 16, WeightFormat::kF32));
  for (const WeightFormat format : {WeightFormat::kF16, WeightFormat::kBf16}) {
    const LoraAdapter adapter = MakeAdapter(random, 16, format);
    const auto packed = PackedAdapter::Create(adapter, 2);
    ASSERT_TRUE(packed);
    EXPECT_EQ((*packed)->bytes(), wide / 2);
    EXPECT_EQ((*packed)->format(), format);
  }
}

INSTANTIATE_TEST_SUITE_P(All, AdapterProducts, testing::ValuesIn(SupportedTargets()),
                         [](const auto& target) { return std::string(NameOf(target.param)); });

}  // namespace
}  // namespace kvasir
