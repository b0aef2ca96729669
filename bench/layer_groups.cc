// How many bytes a sequence takes with the layers of several models in one arena: a table for
// docs/decisions/0011. No model is needed: shapes are those of the models' config.json.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "block/layer_group.h"

namespace kvasir {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr uint64_t kMetadataBytes = 200;
constexpr double kArenaBytes = 8.0 * (uint64_t{1} << 30);

struct Model {
  std::string name;
  std::vector<KvReach> layers;
  uint32_t kv_heads, head_dim, context;
};

// `period` 1: all layers; n: each n-th layer is full, the others have the window.
std::vector<KvReach> Windowed(uint32_t layers, uint32_t window, uint32_t period) {
  std::vector<KvReach> reach(layers, {KvReach::Kind::kWindow, window});
  for (uint32_t i = 0; period > 0 && i < layers; ++i) {
    if ((i + 1) % period == 0) reach[i] = {};
  }
  return reach;
}

std::vector<KvReach> WithSource(uint32_t layers) {
  std::vector<KvReach> reach(2 * layers);
  for (uint32_t i = layers; i < 2 * layers; ++i) reach[i] = {KvReach::Kind::kCross, 0};
  return reach;
}

double MiB(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// Returns bytes of a sequence with nothing but its KV: no slot is empty, no block has metadata.
uint64_t Least(const Model& model, uint64_t tokens, uint64_t layer_bytes) {
  uint64_t bytes = 0;
  for (const LayerGroup& group : GroupLayers(model.layers, 1, model.context)) {
    bytes += BlocksFor(group.reach, tokens, 1, kBlockTokens) * kBlockTokens * layer_bytes;
  }
  return bytes;
}

// Returns the bytes with one block for all layers of a kind, in an arena whose blocks are as large
// as the largest kind's.
uint64_t LargestKind(const Model& model, uint64_t tokens, uint64_t layer_bytes) {
  const auto groups =
      GroupLayers(model.layers, static_cast<uint32_t>(model.layers.size()), model.context);
  size_t largest = 0;
  for (const LayerGroup& group : groups) largest = std::max(largest, group.layers.size());
  const GroupingCost cost{layer_bytes, kBlockTokens, tokens, kMetadataBytes};
  return SequenceBytes(groups, static_cast<uint32_t>(largest), cost);
}

// Returns how many sequences of `tokens` tokens fit into 8 GiB that were divided among the kinds of
// layers once, as one sequence of the whole context divides them.
uint64_t FitDivided(const Model& model, uint64_t tokens, uint64_t layer_bytes) {
  const auto groups = GroupLayers(model.layers, 1, model.context);
  const auto bytes_of = [&](const KvReach& reach, uint64_t length) {
    uint64_t blocks = 0;
    for (const LayerGroup& group : groups) {
      if (group.reach == reach) blocks += BlocksFor(group.reach, length, 1, kBlockTokens);
    }
    return static_cast<double>(blocks * kBlockTokens * layer_bytes);
  };
  const auto whole = static_cast<double>(Least(model, model.context, layer_bytes));
  double fit = 1e18;
  for (const LayerGroup& group : groups) {
    const double share = bytes_of(group.reach, model.context) / whole;
    fit = std::min(fit, share * kArenaBytes / bytes_of(group.reach, tokens));
  }
  return static_cast<uint64_t>(fit);
}

int Main() {
  const std::vector<Model> models = {
      {"Qwen3-4B", std::vector<KvReach>(36), 8, 128, 40960},
      {"Mistral-7B v0.1", Windowed(32, 4096, 0), 8, 128, 32768},
      {"Gemma 2 2B", Windowed(26, 4096, 2), 4, 256, 8192},
      {"Gemma 3 1B", Windowed(26, 512, 6), 1, 256, 32768},
      {"Gemma 3 4B", Windowed(34, 1024, 6), 4, 256, 131072},
      {"M2M-100 418M", WithSource(12), 16, 64, 1024},
  };
  fmt::print(
      "| model | tokens | slots | groups | KV alone | one arena, sliced | padding and metadata | "
      "one arena, blocks of the largest kind | 8 GiB hold, sliced | divided once |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const Model& model : models) {
    const uint64_t layer_bytes = uint64_t{2} * 2 * model.kv_heads * model.head_dim;  // f16 K and V
    const GroupingCost planned{layer_bytes, kBlockTokens, model.context, kMetadataBytes};
    const uint32_t slots = ChooseSlots(model.layers, model.context, planned);
    const auto groups = GroupLayers(model.layers, slots, model.context);
    std::vector<uint64_t> lengths = {1024};
    if (model.context > 1024) lengths.push_back(model.context);
    for (const uint64_t tokens : lengths) {
      const GroupingCost cost{layer_bytes, kBlockTokens, tokens, kMetadataBytes};
      const uint64_t least = Least(model, tokens, layer_bytes);
      const uint64_t sliced = SequenceBytes(groups, slots, cost);
      fmt::print(
          "| {} | {} | {} | {} | {:.1f} MiB | {:.1f} MiB | {:.1f}% | {:.1f} MiB | {} | {} |\n",
          model.name, tokens, slots, groups.size(), MiB(least), MiB(sliced),
          100.0 * (static_cast<double>(sliced) / static_cast<double>(least) - 1),
          MiB(LargestKind(model, tokens, layer_bytes)), static_cast<uint64_t>(kArenaBytes) / sliced,
          FitDivided(model, tokens, layer_bytes));
    }
  }
  return 0;
}

}  // namespace
}  // namespace kvasir

int main() { return kvasir::Main(); }
