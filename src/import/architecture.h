// Architecture: one row of a table per model family. What a family's tensors are called and which
// of them it has is data here; importers and binding read it and know no family by name.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "import/importer.h"
#include "kvasir/status.h"

namespace kvasir {

// Rows or columns of a slot's tensor in terms of the config.
enum class Extent { kVocab, kHidden, kQueries, kKeyValues, kFfn };
uint64_t SizeOf(Extent extent, const ModelConfig& config);

// When a slot must be filled.
enum class Condition { kAlways, kUntied, kQkvBias, kOBias, kMlpBias };
bool Holds(Condition condition, const ModelConfig& config);

// The shape of a slot is the same for every family that has it.
struct SlotTraits {
  Slot slot;
  Extent rows;
  std::optional<Extent> columns;  // absent: a vector
  Condition condition;
  bool rope_rows;  // rows pair up under RoPE: their order depends on who wrote the file
};
const SlotTraits& TraitsOf(Slot slot);

// What a slot's tensor is called; "{}" stands for the layer. "": the format never has it.
struct SlotNames {
  Slot slot;
  std::string_view hf, gguf;
};

// Whether a family has a bias: never, always, or as a boolean of config.json says. In GGUF the
// tensor's presence says it.
enum class Presence { kNever, kAlways, kAsConfigured };
struct BiasRule {
  Presence presence = Presence::kNever;
  std::string_view config_key = "";
};

struct Architecture {
  std::string_view name;           // ModelConfig::architecture
  std::string_view hf_class;       // an entry of config.json's "architectures"
  std::string_view hf_model_type;  // for files without "architectures"
  std::string_view gguf_name;      // general.architecture, and the prefix of its keys
  std::string_view activation;     // the only hidden_act that it computes
  BiasRule qkv_bias, o_bias, mlp_bias;
  // GGUF stores rows of Q and K so that RoPE pairs neighbours (MatrixSource).
  bool gguf_interleaved_rope_rows = false;
  std::span<const SlotNames> slots;
  // What layer `layer` is made of.
  LayerSpec (*layer)(const ModelConfig& config, uint32_t layer);

  const SlotNames& NamesOf(Slot slot) const;  // REQUIRES: the family has it
};

std::span<const Architecture> Architectures();
// The row that a config came from. REQUIRES: config.architecture is a row's name.
const Architecture& ArchitectureOf(const ModelConfig& config);
LayerSpec LayerOf(const ModelConfig& config, uint32_t layer);
// "LlamaForCausalLM (GGUF: llama)", ...: for messages.
std::string SupportedArchitectures();

// "{}" of a name replaced by the layer.
std::string TensorName(std::string_view pattern, uint32_t layer);
// Puts a tensor into its slot. REQUIRES: layer < model.layers.size() for a slot of a layer.
void Place(Slot slot, MatrixSource source, uint32_t layer, ImportedModel& model);

// fn(view) for each weight matrix of the layers: the one list of them.
template <typename Fn>
void ForEachLayerMatrix(const ImportedModel& model, Fn fn) {
  for (const SlotTensors& layer : model.layers) {
    layer.ForEach([&](Slot slot, const MatrixSource& tensor) {
      if (TraitsOf(slot).columns) fn(tensor.view);
    });
  }
}

}  // namespace kvasir
