#include "import/architecture.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr SlotNames kLlamaSlots[] = {
    {Slot::kEmbedding, "model.embed_tokens.weight", "token_embd.weight"},
    {Slot::kFinalNorm, "model.norm.weight", "output_norm.weight"},
    {Slot::kLmHead, "lm_head.weight", "output.weight"},
    {Slot::kAttentionNorm, "model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight"},
    {Slot::kFfnNorm, "model.layers.{}.post_attention_layernorm.weight", "blk.{}.ffn_norm.weight"},
    {Slot::kQ, "model.layers.{}.self_attn.q_proj.weight", "blk.{}.attn_q.weight"},
    {Slot::kK, "model.layers.{}.self_attn.k_proj.weight", "blk.{}.attn_k.weight"},
    {Slot::kV, "model.layers.{}.self_attn.v_proj.weight", "blk.{}.attn_v.weight"},
    {Slot::kO, "model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight"},
    {Slot::kQBias, "model.layers.{}.self_attn.q_proj.bias", "blk.{}.attn_q.bias"},
    {Slot::kKBias, "model.layers.{}.self_attn.k_proj.bias", "blk.{}.attn_k.bias"},
    {Slot::kVBias, "model.layers.{}.self_attn.v_proj.bias", "blk.{}.attn_v.bias"},
    {Slot::kOBias, "model.layers.{}.self_attn.o_proj.bias", "blk.{}.attn_output.bias"},
    {Slot::kGate, "model.layers.{}.mlp.gate_proj.weight", "blk.{}.ffn_gate.weight"},
    {Slot::kUp, "model.layers.{}.mlp.up_proj.weight", "blk.{}.ffn_up.weight"},
    {Slot::kDown, "model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight"},
    {Slot::kGateBias, "model.layers.{}.mlp.gate_proj.bias", "blk.{}.ffn_gate.bias"},
    {Slot::kUpBias, "model.layers.{}.mlp.up_proj.bias", "blk.{}.ffn_up.bias"},
    {Slot::kDownBias, "model.layers.{}.mlp.down_proj.bias", "blk.{}.ffn_down.bias"},
};

// A window that is as long as the model's own context is none.
LayerSpec LlamaLayer(const ModelConfig& config, uint32_t layer) {
  const uint32_t window = config.windows.empty() ? 0 : config.windows[layer];
  return {.window = window < config.max_positions ? window : 0};
}

constexpr Architecture kArchitectures[] = {
    {.name = "llama",
     .hf_class = "LlamaForCausalLM",
     .hf_model_type = "llama",
     .gguf_name = "llama",
     .activation = "silu",
     .qkv_bias = {Presence::kAsConfigured, "attention_bias"},
     .o_bias = {Presence::kAsConfigured, "attention_bias"},
     .mlp_bias = {Presence::kAsConfigured, "mlp_bias"},
     .gguf_interleaved_rope_rows = true,
     .slots = kLlamaSlots,
     .layer = LlamaLayer},
};

using enum Extent;
constexpr SlotTraits kTraits[] = {
    {Slot::kEmbedding, kVocab, kHidden, Condition::kAlways, false},
    {Slot::kFinalNorm, kHidden, {}, Condition::kAlways, false},
    {Slot::kLmHead, kVocab, kHidden, Condition::kUntied, false},
    {Slot::kAttentionNorm, kHidden, {}, Condition::kAlways, false},
    {Slot::kFfnNorm, kHidden, {}, Condition::kAlways, false},
    {Slot::kQ, kQueries, kHidden, Condition::kAlways, true},
    {Slot::kK, kKeyValues, kHidden, Condition::kAlways, true},
    {Slot::kV, kKeyValues, kHidden, Condition::kAlways, false},
    {Slot::kO, kHidden, kQueries, Condition::kAlways, false},
    {Slot::kQBias, kQueries, {}, Condition::kQkvBias, true},
    {Slot::kKBias, kKeyValues, {}, Condition::kQkvBias, true},
    {Slot::kVBias, kKeyValues, {}, Condition::kQkvBias, false},
    {Slot::kOBias, kHidden, {}, Condition::kOBias, false},
    {Slot::kGate, kFfn, kHidden, Condition::kAlways, false},
    {Slot::kUp, kFfn, kHidden, Condition::kAlways, false},
    {Slot::kDown, kHidden, kFfn, Condition::kAlways, false},
    {Slot::kGateBias, kFfn, {}, Condition::kMlpBias, false},
    {Slot::kUpBias, kFfn, {}, Condition::kMlpBias, false},
    {Slot::kDownBias, kHidden, {}, Condition::kMlpBias, false},
};
static_assert([] {
  for (size_t i = 0; i < std::size(kTraits); ++i) {
    if (kTraits[i].slot != static_cast<Slot>(i)) return false;
  }
  return true;
}());

}  // namespace

uint64_t SizeOf(Extent extent, const ModelConfig& config) {
  switch (extent) {
    case kVocab:
      return config.vocab_size;
    case kHidden:
      return config.hidden_size;
    case kQueries:
      return uint64_t{config.num_heads} * config.head_dim;
    case kKeyValues:
      return uint64_t{config.num_kv_heads} * config.head_dim;
    case kFfn:
      return config.ffn_size;
  }
  KV_CHECK(false);
}

bool Holds(Condition condition, const ModelConfig& config) {
  switch (condition) {
    case Condition::kAlways:
      return true;
    case Condition::kUntied:
      return !config.tied_embeddings;
    case Condition::kQkvBias:
      return config.qkv_bias;
    case Condition::kOBias:
      return config.o_bias;
    case Condition::kMlpBias:
      return config.mlp_bias;
  }
  KV_CHECK(false);
}

const SlotTraits& TraitsOf(Slot slot) { return kTraits[static_cast<size_t>(slot)]; }

const SlotNames& Architecture::NamesOf(Slot slot) const {
  const auto found = std::ranges::find(slots, slot, &SlotNames::slot);
  KV_CHECK(found != slots.end());
  return *found;
}

std::span<const Architecture> Architectures() { return kArchitectures; }

const Architecture& ArchitectureOf(const ModelConfig& config) {
  const auto* found = std::ranges::find(kArchitectures, config.architecture, &Architecture::name);
  KV_CHECK(found != std::end(kArchitectures));
  return *found;
}

LayerSpec LayerOf(const ModelConfig& config, uint32_t layer) {
  return ArchitectureOf(config).layer(config, layer);
}

std::string SupportedArchitectures() {
  std::string text;
  for (const Architecture& row : kArchitectures) {
    if (!text.empty()) text += ", ";
    text += std::string(row.hf_class) + " (GGUF: " + std::string(row.gguf_name) + ")";
  }
  return text;
}

std::string TensorName(std::string_view pattern, uint32_t layer) {
  const size_t hole = pattern.find("{}");
  if (hole == pattern.npos) return std::string(pattern);
  return std::string(pattern.substr(0, hole)) + std::to_string(layer) +
         std::string(pattern.substr(hole + 2));
}

void Place(Slot slot, MatrixSource source, uint32_t layer, ImportedModel& model) {
  switch (slot) {
    case Slot::kEmbedding:
      model.embedding = std::move(source.view);
      return;
    case Slot::kFinalNorm:
      model.final_norm = std::move(source.view);
      return;
    case Slot::kLmHead:
      model.lm_head = std::move(source);
      return;
    default:
      model.layers[layer].Set(slot, std::move(source));
  }
}

}  // namespace kvasir
