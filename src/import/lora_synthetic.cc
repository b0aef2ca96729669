// Adapters with random numbers, for selftest, benchmarks and tests.
#include <algorithm>

#include "base/random.h"
#include "import/architecture.h"
#include "import/lora_parts.h"

namespace kvasir {
namespace {

void FillUniform(Random& random, float most, uint64_t count, std::vector<float>& numbers) {
  numbers.resize(count);
  for (float& number : numbers) number = static_cast<float>(random.Uniform() * 2 - 1) * most;
}

}  // namespace

LoraAdapter SyntheticLora(const ModelConfig& config, uint32_t rank, uint64_t seed) {
  constexpr float kMostOfB = 0.2f;
  Random random(Mix64(seed));
  LoraAdapter adapter;
  const Architecture& row = ArchitectureOf(config);
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    for (const auto& [slot, target] : kLoraSlots) {
      const SlotTraits& traits = TraitsOf(slot);
      if (row.Find(slot) == nullptr || !Holds(traits.condition, config, layer)) continue;
      LoraPair pair{.layer = layer,
                    .target = target,
                    .rank = rank,
                    .in = static_cast<uint32_t>(SizeOf(*traits.columns, config)),
                    .out = static_cast<uint32_t>(SizeOf(traits.rows, config))};
      // The products of A have about the size of x.
      FillUniform(random, 1.0f / __builtin_sqrtf(static_cast<float>(pair.in)),
                  uint64_t{rank} * pair.in, pair.a);
      FillUniform(random, kMostOfB, uint64_t{pair.out} * rank, pair.b);
      adapter.pairs.push_back(std::move(pair));
    }
  }
  adapter.numbers = LoraNumbersDigest(adapter.pairs);
  return adapter;
}

}  // namespace kvasir
