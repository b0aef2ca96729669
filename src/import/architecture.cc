#include "import/architecture.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace kvasir {
namespace {

template <size_t... kSizes>
constexpr auto Join(const SlotNames (&... parts)[kSizes]) {
  std::array<SlotNames, (kSizes + ...)> all{};
  auto* end = all.data();
  ((end = std::copy(parts, parts + kSizes, end)), ...);
  return all;
}

constexpr SlotNames kEnds[] = {
    {Slot::kEmbedding, "model.embed_tokens.weight", "token_embd.weight"},
    {Slot::kFinalNorm, "model.norm.weight", "output_norm.weight"},
    {Slot::kLmHead, "lm_head.weight", "output.weight"},
};
constexpr SlotNames kNormsBefore[] = {
    {Slot::kAttentionNorm, "model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight"},
    {Slot::kFfnNorm, "model.layers.{}.post_attention_layernorm.weight", "blk.{}.ffn_norm.weight"},
};
constexpr SlotNames kNormsAfter[] = {
    {Slot::kAttentionPostNorm, "model.layers.{}.post_attention_layernorm.weight",
     "blk.{}.post_attention_norm.weight"},
    {Slot::kFfnPostNorm, "model.layers.{}.post_feedforward_layernorm.weight",
     "blk.{}.post_ffw_norm.weight"},
};
constexpr SlotNames kNormsAround[] = {
    kNormsBefore[0],
    kNormsAfter[0],
    {Slot::kFfnNorm, "model.layers.{}.pre_feedforward_layernorm.weight", "blk.{}.ffn_norm.weight"},
    kNormsAfter[1],
};
constexpr SlotNames kAttention[] = {
    {Slot::kQ, "model.layers.{}.self_attn.q_proj.weight", "blk.{}.attn_q.weight"},
    {Slot::kK, "model.layers.{}.self_attn.k_proj.weight", "blk.{}.attn_k.weight"},
    {Slot::kV, "model.layers.{}.self_attn.v_proj.weight", "blk.{}.attn_v.weight"},
    {Slot::kO, "model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight"},
    {Slot::kQBias, "model.layers.{}.self_attn.q_proj.bias", "blk.{}.attn_q.bias"},
    {Slot::kKBias, "model.layers.{}.self_attn.k_proj.bias", "blk.{}.attn_k.bias"},
    {Slot::kVBias, "model.layers.{}.self_attn.v_proj.bias", "blk.{}.attn_v.bias"},
    {Slot::kOBias, "model.layers.{}.self_attn.o_proj.bias", "blk.{}.attn_output.bias"},
};
constexpr SlotNames kNormOfEachHead[] = {
    {Slot::kQNorm, "model.layers.{}.self_attn.q_norm.weight", "blk.{}.attn_q_norm.weight"},
    {Slot::kKNorm, "model.layers.{}.self_attn.k_norm.weight", "blk.{}.attn_k_norm.weight"},
};
constexpr SlotNames kNormOfAllHeads[] = {
    {Slot::kAllQNorm, kNormOfEachHead[0].hf, kNormOfEachHead[0].gguf},
    {Slot::kAllKNorm, kNormOfEachHead[1].hf, kNormOfEachHead[1].gguf},
};
constexpr SlotNames kGatedFfn[] = {
    {Slot::kGate, "model.layers.{}.mlp.gate_proj.weight", "blk.{}.ffn_gate.weight"},
    {Slot::kUp, "model.layers.{}.mlp.up_proj.weight", "blk.{}.ffn_up.weight"},
    {Slot::kDown, "model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight"},
};
constexpr SlotNames kMixtralExperts[] = {
    {Slot::kRouter, "model.layers.{}.block_sparse_moe.gate.weight", "blk.{}.ffn_gate_inp.weight"},
    {Slot::kExpertGate, "model.layers.{}.block_sparse_moe.experts.{}.w1.weight",
     "blk.{}.ffn_gate_exps.weight[{}]"},
    {Slot::kExpertUp, "model.layers.{}.block_sparse_moe.experts.{}.w3.weight",
     "blk.{}.ffn_up_exps.weight[{}]"},
    {Slot::kExpertDown, "model.layers.{}.block_sparse_moe.experts.{}.w2.weight",
     "blk.{}.ffn_down_exps.weight[{}]"},
};
constexpr SlotNames kQwenExperts[] = {
    {Slot::kRouter, "model.layers.{}.mlp.gate.weight", "blk.{}.ffn_gate_inp.weight"},
    {Slot::kExpertGate, "model.layers.{}.mlp.experts.{}.gate_proj.weight", kMixtralExperts[1].gguf},
    {Slot::kExpertUp, "model.layers.{}.mlp.experts.{}.up_proj.weight", kMixtralExperts[2].gguf},
    {Slot::kExpertDown, "model.layers.{}.mlp.experts.{}.down_proj.weight", kMixtralExperts[3].gguf},
};
constexpr SlotNames kFfnBiases[] = {
    {Slot::kGateBias, "model.layers.{}.mlp.gate_proj.bias", "blk.{}.ffn_gate.bias"},
    {Slot::kUpBias, "model.layers.{}.mlp.up_proj.bias", "blk.{}.ffn_up.bias"},
    {Slot::kDownBias, "model.layers.{}.mlp.down_proj.bias", "blk.{}.ffn_down.bias"},
};
constexpr SlotNames kFusedPhi3[] = {
    {Slot::kQ, "model.layers.{}.self_attn.qkv_proj.weight", "blk.{}.attn_qkv.weight"},
    {Slot::kK, "model.layers.{}.self_attn.qkv_proj.weight", "blk.{}.attn_qkv.weight"},
    {Slot::kV, "model.layers.{}.self_attn.qkv_proj.weight", "blk.{}.attn_qkv.weight"},
    kAttention[3],
    {Slot::kGate, "model.layers.{}.mlp.gate_up_proj.weight", "blk.{}.ffn_up.weight"},
    {Slot::kUp, "model.layers.{}.mlp.gate_up_proj.weight", "blk.{}.ffn_up.weight"},
    kGatedFfn[2],
};

constexpr auto kLlamaSlots = Join(kEnds, kNormsBefore, kAttention, kGatedFfn, kFfnBiases);
constexpr auto kQwen3Slots = Join(kEnds, kNormsBefore, kAttention, kNormOfEachHead, kGatedFfn);
constexpr auto kMixtralSlots = Join(kEnds, kNormsBefore, kAttention, kMixtralExperts);
constexpr auto kQwen3MoeSlots =
    Join(kEnds, kNormsBefore, kAttention, kNormOfEachHead, kGatedFfn, kQwenExperts);
constexpr auto kOlmo2Slots = Join(kEnds, kNormsAfter, kAttention, kNormOfAllHeads, kGatedFfn);
constexpr auto kGemma2Slots = Join(kEnds, kNormsAround, kAttention, kGatedFfn);
constexpr auto kGemma3Slots = Join(kEnds, kNormsAround, kAttention, kGatedFfn, kNormOfEachHead);
constexpr auto kPhi3Slots = Join(kEnds, kNormsBefore, kFusedPhi3);

constexpr SlotNames kGpt2Slots[] = {
    {Slot::kEmbedding, "wte.weight", "token_embd.weight"},
    {Slot::kPositions, "wpe.weight", "position_embd.weight"},
    {Slot::kFinalNorm, "ln_f.weight", "output_norm.weight"},
    {Slot::kFinalNormBias, "ln_f.bias", "output_norm.bias"},
    {Slot::kLmHead, "lm_head.weight", "output.weight"},
    {Slot::kAttentionNorm, "h.{}.ln_1.weight", "blk.{}.attn_norm.weight"},
    {Slot::kAttentionNormBias, "h.{}.ln_1.bias", "blk.{}.attn_norm.bias"},
    {Slot::kFfnNorm, "h.{}.ln_2.weight", "blk.{}.ffn_norm.weight"},
    {Slot::kFfnNormBias, "h.{}.ln_2.bias", "blk.{}.ffn_norm.bias"},
    {Slot::kQ, "h.{}.attn.c_attn.weight", "blk.{}.attn_qkv.weight"},
    {Slot::kK, "h.{}.attn.c_attn.weight", "blk.{}.attn_qkv.weight"},
    {Slot::kV, "h.{}.attn.c_attn.weight", "blk.{}.attn_qkv.weight"},
    {Slot::kQBias, "h.{}.attn.c_attn.bias", "blk.{}.attn_qkv.bias"},
    {Slot::kKBias, "h.{}.attn.c_attn.bias", "blk.{}.attn_qkv.bias"},
    {Slot::kVBias, "h.{}.attn.c_attn.bias", "blk.{}.attn_qkv.bias"},
    {Slot::kO, "h.{}.attn.c_proj.weight", "blk.{}.attn_output.weight"},
    {Slot::kOBias, "h.{}.attn.c_proj.bias", "blk.{}.attn_output.bias"},
    {Slot::kUp, "h.{}.mlp.c_fc.weight", "blk.{}.ffn_up.weight"},
    {Slot::kDown, "h.{}.mlp.c_proj.weight", "blk.{}.ffn_down.weight"},
    {Slot::kUpBias, "h.{}.mlp.c_fc.bias", "blk.{}.ffn_up.bias"},
    {Slot::kDownBias, "h.{}.mlp.c_proj.bias", "blk.{}.ffn_down.bias"},
};

bool HasExperts(const ModelConfig& config, uint32_t layer) {
  return config.experts && (config.experts->layers.empty() || config.experts->layers[layer]);
}

// A window as long as the model's own context counts as full.
LayerSpec LlamaLayer(const ModelConfig& config, uint32_t layer) {
  const uint32_t window = config.windows.empty() ? 0 : config.windows[layer];
  return {.ffn = HasExperts(config, layer) ? FfnKind::kExperts : FfnKind::kGated,
          .activation = config.activation,
          .rotated = config.rotated_layers.empty() || config.rotated_layers[layer],
          .window = window < config.max_positions ? window : 0};
}

LayerSpec Qwen3Layer(const ModelConfig& config, uint32_t layer) {
  LayerSpec spec = LlamaLayer(config, layer);
  spec.head_norm = HeadNorm::kEach;
  return spec;
}

LayerSpec Olmo2Layer(const ModelConfig& config, uint32_t layer) {
  LayerSpec spec = LlamaLayer(config, layer);
  spec.norm_place = NormPlace::kAfter;
  spec.head_norm = HeadNorm::kAll;
  return spec;
}

LayerSpec Gemma2Layer(const ModelConfig& config, uint32_t layer) {
  LayerSpec spec = LlamaLayer(config, layer);
  spec.norm_place = NormPlace::kAround;
  return spec;
}

LayerSpec Gemma3Layer(const ModelConfig& config, uint32_t layer) {
  LayerSpec spec = Gemma2Layer(config, layer);
  spec.head_norm = HeadNorm::kEach;
  // Also where the window is as long as the context and the layer thus full.
  spec.local_rope = !config.windows.empty() && config.windows[layer] > 0;
  return spec;
}

LayerSpec Gpt2Layer(const ModelConfig& config, uint32_t layer) {
  LayerSpec spec = LlamaLayer(config, layer);
  spec.norm = NormKind::kLayer;
  spec.ffn = FfnKind::kPlain;
  spec.rotated = false;
  return spec;
}

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
          .slots = kGemma3Slots,
          .layer = Gemma3Layer};
}

// The text half of a model that also sees images.
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
     .slots = kLlamaSlots,
     .layer = LlamaLayer},
    {.name = "mistral",
     .hf_class = "MistralForCausalLM",
     .hf_model_type = "mistral",
     .gguf_name = "llama",
     .defaults = {.positions = 131072, .window = 4096, .kv_heads = 8},
     .windows = WindowRule::kAll,
     .slots = kLlamaSlots,
     .layer = LlamaLayer},
    {.name = "ministral",
     .hf_class = "MinistralForCausalLM",
     .hf_model_type = "ministral",
     .gguf_name = "llama",
     .defaults = {.positions = 131072, .window = 4096, .kv_heads = 8},
     .windows = WindowRule::kAll,
     .slots = kLlamaSlots,
     .layer = LlamaLayer},
    {.name = "qwen2",
     .hf_class = "Qwen2ForCausalLM",
     .hf_model_type = "qwen2",
     .gguf_name = "qwen2",
     .qkv_bias = {Presence::kAlways},
     .defaults = {.positions = 32768, .window = 4096},
     .windows = WindowRule::kFromLayer,
     .slots = kLlamaSlots,
     .layer = LlamaLayer},
    {.name = "qwen3",
     .hf_class = "Qwen3ForCausalLM",
     .hf_model_type = "qwen3",
     .gguf_name = "qwen3",
     .qkv_bias = kAttentionBias,
     .o_bias = kAttentionBias,
     .defaults = {.positions = 32768, .head_dim = 128, .window = 4096},
     .windows = WindowRule::kFromLayer,
     .slots = kQwen3Slots,
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
     .slots = kMixtralSlots,
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
     .slots = kQwen3MoeSlots,
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
     .slots = kLlamaSlots,
     .layer = LlamaLayer},
    {.name = "olmo2",
     .hf_class = "Olmo2ForCausalLM",
     .hf_model_type = "olmo2",
     .gguf_name = "olmo2",
     .qkv_bias = kAttentionBias,
     .o_bias = kAttentionBias,
     .defaults = {.eps = 1e-5},
     .slots = kOlmo2Slots,
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
     .slots = kLlamaSlots,
     .layer = LlamaLayer},
    {.name = "phi3",
     .hf_class = "Phi3ForCausalLM",
     .hf_model_type = "phi3",
     .gguf_name = "phi3",
     .defaults = {.eps = 1e-5, .positions = 4096},
     .partial_rotary = true,
     .windows = WindowRule::kAll,
     .gguf_windows = WindowRule::kAll,
     .slots = kPhi3Slots,
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
     .slots = kGemma2Slots,
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
     .slots = kGpt2Slots,
     .layer = Gpt2Layer},
};

using enum Extent;
constexpr SlotTraits kTraits[] = {
    {Slot::kEmbedding, kVocab, kHidden, Condition::kAlways, false},
    {Slot::kFinalNorm, kHidden, {}, Condition::kAlways, false},
    {Slot::kFinalNormBias, kHidden, {}, Condition::kAlways, false},
    {Slot::kLmHead, kVocab, kHidden, Condition::kUntied, false},
    {Slot::kPositions, kPositions, kHidden, Condition::kAlways, false},
    {Slot::kAttentionNorm, kHidden, {}, Condition::kAlways, false},
    {Slot::kAttentionNormBias, kHidden, {}, Condition::kAlways, false},
    {Slot::kAttentionPostNorm, kHidden, {}, Condition::kAlways, false},
    {Slot::kFfnNorm, kHidden, {}, Condition::kAlways, false},
    {Slot::kFfnNormBias, kHidden, {}, Condition::kAlways, false},
    {Slot::kFfnPostNorm, kHidden, {}, Condition::kAlways, false},
    {Slot::kQ, kQueries, kHidden, Condition::kAlways, true},
    {Slot::kK, kKeyValues, kHidden, Condition::kAlways, true},
    {Slot::kV, kKeyValues, kHidden, Condition::kAlways, false},
    {Slot::kO, kHidden, kQueries, Condition::kAlways, false},
    {Slot::kQBias, kQueries, {}, Condition::kQkvBias, true},
    {Slot::kKBias, kKeyValues, {}, Condition::kQkvBias, true},
    {Slot::kVBias, kKeyValues, {}, Condition::kQkvBias, false},
    {Slot::kOBias, kHidden, {}, Condition::kOBias, false},
    {Slot::kQNorm, kHeadDim, {}, Condition::kAlways, false},
    {Slot::kKNorm, kHeadDim, {}, Condition::kAlways, false},
    {Slot::kAllQNorm, kQueries, {}, Condition::kAlways, false},
    {Slot::kAllKNorm, kKeyValues, {}, Condition::kAlways, false},
    {Slot::kGate, kFfn, kHidden, Condition::kDense, false},
    {Slot::kUp, kFfn, kHidden, Condition::kDense, false},
    {Slot::kDown, kHidden, kFfn, Condition::kDense, false},
    {Slot::kGateBias, kFfn, {}, Condition::kMlpBias, false},
    {Slot::kUpBias, kFfn, {}, Condition::kMlpBias, false},
    {Slot::kDownBias, kHidden, {}, Condition::kMlpBias, false},
    {Slot::kRouter, kExperts, kHidden, Condition::kExperts, false},
    {Slot::kExpertGate, kExpertFfn, kHidden, Condition::kExperts, false},
    {Slot::kExpertUp, kExpertFfn, kHidden, Condition::kExperts, false},
    {Slot::kExpertDown, kHidden, kExpertFfn, Condition::kExperts, false},
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
    case kHeadDim:
      return config.head_dim;
    case kPositions:
      return config.max_positions;
    case kExperts:
      return config.experts ? config.experts->count : 0;
    case kExpertFfn:
      return config.experts ? config.experts->ffn_size : 0;
  }
  KV_CHECK(false);
}

bool Holds(Condition condition, const ModelConfig& config, uint32_t layer) {
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
    case Condition::kDense:
      return !HasExperts(config, layer);
    case Condition::kExperts:
      return HasExperts(config, layer);
  }
  KV_CHECK(false);
}

const SlotTraits& TraitsOf(Slot slot) { return kTraits[static_cast<size_t>(slot)]; }

const SlotNames* Architecture::Find(Slot slot) const {
  const auto found = std::ranges::find(slots, slot, &SlotNames::slot);
  return found == slots.end() ? nullptr : &*found;
}

const SlotNames& Architecture::NamesOf(Slot slot) const {
  KV_CHECK(Find(slot) != nullptr);
  return *Find(slot);
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

std::string TensorName(std::string_view pattern, uint32_t layer, uint32_t expert) {
  std::string name;
  for (uint32_t number : {layer, expert}) {
    const size_t hole = pattern.find("{}");
    if (hole == pattern.npos) break;
    name += std::string(pattern.substr(0, hole)) + std::to_string(number);
    pattern.remove_prefix(hole + 2);
  }
  return name += pattern;
}

uint32_t TensorsOf(Slot slot, const ModelConfig& config) {
  return slot >= Slot::kExpertGate && config.experts ? config.experts->count : 1;
}

void Place(Slot slot, MatrixSource source, uint32_t layer, ImportedModel& model) {
  switch (slot) {
    case Slot::kEmbedding:
      model.embedding = std::move(source.view);
      return;
    case Slot::kFinalNorm:
      model.final_norm = std::move(source.view);
      return;
    case Slot::kFinalNormBias:
      model.final_norm_bias = std::move(source.view);
      return;
    case Slot::kLmHead:
      model.lm_head = std::move(source);
      return;
    case Slot::kPositions:
      model.positions = std::move(source.view);
      return;
    default:
      model.layers[layer].Add(slot, std::move(source));
  }
}

}  // namespace kvasir
