// Bytes as a config.json: an error that says something, or a config that every later step can take.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "fuzz_target.h"
#include "import/architecture.h"
#include "import/hf_config.h"
#include "model/rope_table.h"

KV_FUZZ_TARGET(hf_config)(const uint8_t* data, size_t size) {
  using namespace kvasir;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = ParseHfConfig(text, {}, "fuzz");
  if (!config) {
    KV_CHECK(!config.error().message.empty());
    return 0;
  }
  KV_CHECK(ValidateConfig(*config, "fuzz").has_value());
  KV_CHECK(!CanonicalText(*config).empty());
  for (const double frequency : RopeFrequencies(config->rope, config->head_dim)) {
    KV_CHECK(std::isfinite(frequency));
  }
  if (config->local_rope) {
    for (const double frequency : RopeFrequencies(*config->local_rope, config->head_dim)) {
      KV_CHECK(std::isfinite(frequency));
    }
  }
  KV_CHECK(config->windows.empty() || config->windows.size() == config->num_layers);
  const Architecture& row = ArchitectureOf(*config);
  for (const uint32_t layer : {0u, config->num_layers / 2, config->num_layers - 1}) {
    const LayerSpec spec = LayerOf(*config, layer);
    KV_CHECK(!NormsInput(spec) || row.Find(Slot::kFfnNorm));
    KV_CHECK(!NormsOutput(spec) || row.Find(Slot::kFfnPostNorm));
    KV_CHECK(!spec.local_rope || config->local_rope);
    KV_CHECK((row.Find(Slot::kGate) != nullptr) || (spec.ffn != FfnKind::kGated));
  }
  for (const SlotNames& names : row.slots) {
    KV_CHECK(SizeOf(TraitsOf(names.slot).rows, *config) > 0);
  }
  return 0;
}
