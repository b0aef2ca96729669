// Adapters of numbers in memory, for selftest, benchmarks and tests.
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "import/architecture.h"
#include "import/lora_parts.h"

namespace kvasir {
namespace {

void AddUniform(Random& random, float most, uint64_t count, std::vector<float>& numbers) {
  for (uint64_t i = 0; i < count; ++i) {
    numbers.push_back(static_cast<float>(random.Uniform() * 2 - 1) * most);
  }
}

}  // namespace

LoraAdapter LoraOf(std::vector<LoraPair> pairs, std::vector<float> numbers) {
  LoraAdapter adapter{.pairs = std::move(pairs),
                      .made = std::make_shared<const std::vector<float>>(std::move(numbers))};
  std::span<const std::byte> left = std::as_bytes(std::span(*adapter.made));
  const auto take = [&](uint64_t rows, uint64_t columns) {
    const uint64_t bytes = rows * columns * sizeof(float);
    KV_CHECK(bytes <= left.size());
    LoraHalf half{.tensor = {.name = "made",
                             .type = "F32",
                             .dtype = DType::kF32,
                             .shape = {rows, columns},
                             .bytes = left.first(bytes),
                             .file = "made"}};
    left = left.subspan(bytes);
    return half;
  };
  for (LoraPair& pair : adapter.pairs) {
    pair.a = take(pair.rank, pair.in);
    pair.b = take(pair.out, pair.rank);
  }
  return adapter;
}

LoraAdapter SyntheticLora(const ModelConfig& config, uint32_t rank, uint64_t seed) {
  constexpr float kMostOfB = 0.2f;
  Random random(Mix64(seed));
  std::vector<LoraPair> pairs;
  std::vector<float> numbers;
  const Architecture& row = ArchitectureOf(config);
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    for (const auto& [slot, target] : kLoraSlots) {
      const SlotTraits& traits = TraitsOf(slot);
      if (row.Find(slot) == nullptr || !Holds(traits.condition, config, layer)) continue;
      const LoraPair pair{.layer = layer,
                          .target = target,
                          .rank = rank,
                          .in = static_cast<uint32_t>(SizeOf(*traits.columns, config)),
                          .out = static_cast<uint32_t>(SizeOf(traits.rows, config))};
      // The products of A have about the size of x.
      AddUniform(random, 1.0f / __builtin_sqrtf(static_cast<float>(pair.in)),
                 uint64_t{rank} * pair.in, numbers);
      AddUniform(random, kMostOfB, uint64_t{pair.out} * rank, numbers);
      pairs.push_back(pair);
    }
  }
  return LoraOf(std::move(pairs), std::move(numbers));
}

}  // namespace kvasir
