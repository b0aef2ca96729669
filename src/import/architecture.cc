#include "import/architecture.h"

#include <algorithm>

#include "base/check.h"
#include "import/layer_specs.h"
#include "import/slot_names.h"

namespace kvasir {
namespace {

constexpr BiasRule kAttentionBias = {Presence::kAsConfigured, "attention_bias"};
constexpr BiasRule kMlpBias = {Presence::kAsConfigured, "mlp_bias"};

constexpr HfKeys kGemmaKeys = {.activation = "hidden_activation"};

constexpr Architecture Gemma3Row(std::string_view name, std::string_view hf_class,
                                 std::string_view hf_model_type) {
  return {.name = name,
          .hf_class = hf_class,
          .hf_model_type = hf_model_type,
          .gguf_name = "gemma3",
          .activation = Activation::kGeluTanh,
          .qkv_bias = kAttentionBias,
          .o_bias = kAttentionBias,
          .keys = kGemmaKeys,
          .defaults = {.positions = 131072,
                       .theta = 1000000.0,
                       .head_dim = 256,
                       .window = 4096,
                       .vocab = 262208,
                       .heads = 8,
                       .kv_heads = 4,
                       .query_scalar = 256,
                       .tied = true},
          .windows = WindowRule::kPattern,
          .gguf_windows = WindowRule::kPattern,
          .window_pattern = 6,
          .scaled_embedding = true,
          .softcaps = true,
          .hf_norms_less_one = true,
          .gguf_hidden_scale_layers = 62,
          .local_rope = true,
          .slots = slot_names::kGemma3Slots,
          .layer = Gemma3Layer};
}

// Returns the row of the text half of a model that also sees images.
constexpr Architecture Gemma3VisionRow() {
  Architecture row = Gemma3Row("gemma3-vision", "Gemma3ForConditionalGeneration", "gemma3");
  row.text_config = true;
  return row;
}

constexpr Architecture kArchitectures[] = {
    {.name = "llama",
     .hf_class = "LlamaForCausalLM",
     .hf_model_type = "llama",
     .gguf_name = "llama",
     .qkv_bias = kAttentionBias,
     .o_bias = kAttentionBias,
     .mlp_bias = kMlpBias,
     .gguf_interleaved_rope_rows = true,
     .gguf_windows = WindowRule::kAll,
     .slots = slot_names::kLlamaSlots,
     .layer = LlamaLayer},
    {.name = "mistral",
     .hf_class = "MistralForCausalLM",
     .hf_model_type = "mistral",
     .gguf_name = "llama",
     .defaults = {.positions = 131072, .window = 4096, .kv_heads = 8},
     .windows = WindowRule::kAll,
     .slots = slot_names::kLlamaSlots,
     .layer = LlamaLayer},
    {.name = "ministral",
     .hf_class = "MinistralForCausalLM",
     .hf_model_type = "ministral",
     .gguf_name = "llama",
     .defaults = {.positions = 131072, .window = 4096, .kv_heads = 8},
     .windows = WindowRule::kAll,
     .slots = slot_names::kLlamaSlots,
     .layer = LlamaLayer},
    {.name = "qwen2",
     .hf_class = "Qwen2ForCausalLM",
     .hf_model_type = "qwen2",
     .gguf_name = "qwen2",
     .qkv_bias = {Presence::kAlways},
     .defaults = {.positions = 32768, .window = 4096},
     .windows = WindowRule::kFromLayer,
     .slots = slot_names::kLlamaSlots,
     .layer = LlamaLayer},
    {.name = "qwen3",
     .hf_class = "Qwen3ForCausalLM",
     .hf_model_type = "qwen3",
     .gguf_name = "qwen3",
     .qkv_bias = kAttentionBias,
     .o_bias = kAttentionBias,
     .defaults = {.positions = 32768, .head_dim = 128, .window = 4096},
     .windows = WindowRule::kFromLayer,
     .slots = slot_names::kQwen3Slots,
     .layer = Qwen3Layer},
    {.name = "mixtral",
     .hf_class = "MixtralForCausalLM",
     .hf_model_type = "mixtral",
     .gguf_name = "llama",
     .defaults = {.eps = 1e-5,
                  .positions = 131072,
                  .theta = 1000000.0,
                  .kv_heads = 8,
                  .ffn = 14336,
                  .experts = 8,
                  .experts_chosen = 2},
     .gguf_interleaved_rope_rows = true,
     .experts = true,
     .windows = WindowRule::kAll,
     .gguf_windows = WindowRule::kAll,
     .slots = slot_names::kMixtralSlots,
     .layer = LlamaLayer},
    {.name = "qwen3moe",
     .hf_class = "Qwen3MoeForCausalLM",
     .hf_model_type = "qwen3_moe",
     .gguf_name = "qwen3moe",
     .qkv_bias = kAttentionBias,
     .o_bias = kAttentionBias,
     .defaults = {.positions = 32768,
                  .window = 4096,
                  .kv_heads = 4,
                  .ffn = 6144,
                  .experts = 128,
                  .experts_chosen = 8,
                  .expert_ffn = 768},
     .experts = true,
     .routing = Routing::kAllNormed,
     .windows = WindowRule::kIfUsed,
     .slots = slot_names::kQwen3MoeSlots,
     .layer = Qwen3Layer},
    {.name = "granite",
     .hf_class = "GraniteForCausalLM",
     .hf_model_type = "granite",
     .gguf_name = "granite",
     .qkv_bias = kAttentionBias,
     .o_bias = kAttentionBias,
     .mlp_bias = kMlpBias,
     .gguf_interleaved_rope_rows = true,
     .multipliers = true,
     .slots = slot_names::kLlamaSlots,
     .layer = LlamaLayer},
    {.name = "olmo2",
     .hf_class = "Olmo2ForCausalLM",
     .hf_model_type = "olmo2",
     .gguf_name = "olmo2",
     .qkv_bias = kAttentionBias,
     .o_bias = kAttentionBias,
     .defaults = {.eps = 1e-5},
     .slots = slot_names::kOlmo2Slots,
     .layer = Olmo2Layer},
    {.name = "smollm3",
     .hf_class = "SmolLM3ForCausalLM",
     .hf_model_type = "smollm3",
     .gguf_name = "smollm3",
     .qkv_bias = kAttentionBias,
     .o_bias = kAttentionBias,
     .mlp_bias = kMlpBias,
     .defaults = {.positions = 32768, .theta = 2000000.0, .kv_heads = 4, .tied = true},
     .gguf_interleaved_rope_rows = true,
     .no_rope_interval = 4,
     .slots = slot_names::kLlamaSlots,
     .layer = LlamaLayer},
    {.name = "phi3",
     .hf_class = "Phi3ForCausalLM",
     .hf_model_type = "phi3",
     .gguf_name = "phi3",
     .defaults = {.eps = 1e-5, .positions = 4096},
     .partial_rotary = true,
     .windows = WindowRule::kAll,
     .gguf_windows = WindowRule::kAll,
     .slots = slot_names::kPhi3Slots,
     .layer = LlamaLayer},
    {.name = "gemma2",
     .hf_class = "Gemma2ForCausalLM",
     .hf_model_type = "gemma2",
     .gguf_name = "gemma2",
     .activation = Activation::kGeluTanh,
     .qkv_bias = kAttentionBias,
     .o_bias = kAttentionBias,
     .keys = kGemmaKeys,
     .defaults = {.positions = 8192,
                  .head_dim = 256,
                  .window = 4096,
                  .kv_heads = 4,
                  .query_scalar = 256,
                  .attention_softcap = 50,
                  .logits_softcap = 30,
                  .tied = true},
     .windows = WindowRule::kPattern,
     .gguf_windows = WindowRule::kPattern,
     .gguf_window = 4096,
     .window_pattern = 2,
     .scaled_embedding = true,
     .softcaps = true,
     .hf_norms_less_one = true,
     .gguf_hidden_scale_layers = 46,
     .slots = slot_names::kGemma2Slots,
     .layer = Gemma2Layer},
    Gemma3Row("gemma3", "Gemma3ForCausalLM", "gemma3_text"),
    Gemma3VisionRow(),
    {.name = "gpt2",
     .hf_class = "GPT2LMHeadModel",
     .hf_model_type = "gpt2",
     .gguf_name = "gpt2",
     .activation = Activation::kGeluTanh,
     .qkv_bias = {Presence::kAlways},
     .o_bias = {Presence::kAlways},
     .mlp_bias = {Presence::kAlways},
     .keys = {.hidden = "n_embd",
              .layers = "n_layer",
              .heads = "n_head",
              .kv_heads = nullptr,
              .ffn = "n_inner",
              .positions = "n_positions",
              .activation = "activation_function",
              .eps = "layer_norm_epsilon"},
     .defaults = {.eps = 1e-5, .positions = 1024, .ffn_of_hidden = 4, .tied = true},
     .hf_transposed = true,
     .hf_prefix = "transformer.",
     .gguf_eps = "attention.layer_norm_epsilon",
     .learned_positions = true,
     .slots = slot_names::kGpt2Slots,
     .layer = Gpt2Layer},
    {.name = "m2m100",
     .hf_class = "M2M100ForConditionalGeneration",
     .hf_model_type = "m2m_100",
     .activation = Activation::kRelu,
     .qkv_bias = {Presence::kAlways},
     .o_bias = {Presence::kAlways},
     .mlp_bias = {Presence::kAlways},
     .keys = {.hidden = "d_model",
              .layers = "decoder_layers",
              .heads = "decoder_attention_heads",
              .kv_heads = nullptr,
              .ffn = "decoder_ffn_dim",
              .activation = "activation_function",
              .eps = nullptr},
     .defaults =
         {.eps = 1e-5, .positions = 1024, .vocab = 128112, .heads = 16, .ffn = 4096, .tied = true},
     .slots = slot_names::kM2m100Slots,
     .encoder_slots = slot_names::kM2m100EncoderSlots,
     .encoder_keys = {.layers = "encoder_layers",
                      .heads = "encoder_attention_heads",
                      .ffn = "encoder_ffn_dim"},
     .hf_aliases = slot_names::kM2m100Aliases,
     .layer = M2m100Layer},
};

constexpr Architecture kCt2Architecture = {.name = "ctranslate2",
                                           .hf_class = "TransformerSpec",
                                           .hf_model_type = "",
                                           .slots = slot_names::kTransformerSlots,
                                           .encoder_slots = slot_names::kTransformerEncoderSlots,
                                           .layer = M2m100Layer};

}  // namespace

const SlotNames* Architecture::Find(Slot slot) const {
  const auto found = std::ranges::find(slots, slot, &SlotNames::slot);
  return found == slots.end() ? nullptr : &*found;
}

const SlotNames& Architecture::NamesOf(Slot slot) const {
  KV_CHECK(Find(slot) != nullptr);
  return *Find(slot);
}

std::span<const Architecture> Architectures() { return kArchitectures; }
const Architecture& Ct2Architecture() { return kCt2Architecture; }

const Architecture& ArchitectureOf(const ModelConfig& config) {
  if (config.architecture == kCt2Architecture.name) return kCt2Architecture;
  const auto* found = std::ranges::find(kArchitectures, config.architecture, &Architecture::name);
  KV_CHECK(found != std::end(kArchitectures));
  return *found;
}

LayerSpec LayerOf(const ModelConfig& config, uint32_t layer) {
  return ArchitectureOf(config).layer(config, layer);
}

}  // namespace kvasir
