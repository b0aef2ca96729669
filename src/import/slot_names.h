// What the families call their tensors: one list of names per family, of Hugging Face and of GGUF.
#pragma once

#include <algorithm>
#include <array>

#include "import/architecture.h"

namespace kvasir::slot_names {

template <size_t... kSizes>
constexpr auto Join(const SlotNames (&... parts)[kSizes]) {
  std::array<SlotNames, (kSizes + ...)> all{};
  auto* end = all.data();
  ((end = std::copy(parts, parts + kSizes, end)), ...);
  return all;
}

inline constexpr SlotNames kEnds[] = {
    {Slot::kEmbedding, "model.embed_tokens.weight", "token_embd.weight"},
    {Slot::kFinalNorm, "model.norm.weight", "output_norm.weight"},
    {Slot::kLmHead, "lm_head.weight", "output.weight"},
};
inline constexpr SlotNames kNormsBefore[] = {
    {Slot::kAttentionNorm, "model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight"},
    {Slot::kFfnNorm, "model.layers.{}.post_attention_layernorm.weight", "blk.{}.ffn_norm.weight"},
};
inline constexpr SlotNames kNormsAfter[] = {
    {Slot::kAttentionPostNorm, "model.layers.{}.post_attention_layernorm.weight",
     "blk.{}.post_attention_norm.weight"},
    {Slot::kFfnPostNorm, "model.layers.{}.post_feedforward_layernorm.weight",
     "blk.{}.post_ffw_norm.weight"},
};
inline constexpr SlotNames kNormsAround[] = {
    kNormsBefore[0],
    kNormsAfter[0],
    {Slot::kFfnNorm, "model.layers.{}.pre_feedforward_layernorm.weight", "blk.{}.ffn_norm.weight"},
    kNormsAfter[1],
};
inline constexpr SlotNames kAttention[] = {
    {Slot::kQ, "model.layers.{}.self_attn.q_proj.weight", "blk.{}.attn_q.weight"},
    {Slot::kK, "model.layers.{}.self_attn.k_proj.weight", "blk.{}.attn_k.weight"},
    {Slot::kV, "model.layers.{}.self_attn.v_proj.weight", "blk.{}.attn_v.weight"},
    {Slot::kO, "model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight"},
    {Slot::kQBias, "model.layers.{}.self_attn.q_proj.bias", "blk.{}.attn_q.bias"},
    {Slot::kKBias, "model.layers.{}.self_attn.k_proj.bias", "blk.{}.attn_k.bias"},
    {Slot::kVBias, "model.layers.{}.self_attn.v_proj.bias", "blk.{}.attn_v.bias"},
    {Slot::kOBias, "model.layers.{}.self_attn.o_proj.bias", "blk.{}.attn_output.bias"},
};
inline constexpr SlotNames kNormOfEachHead[] = {
    {Slot::kQNorm, "model.layers.{}.self_attn.q_norm.weight", "blk.{}.attn_q_norm.weight"},
    {Slot::kKNorm, "model.layers.{}.self_attn.k_norm.weight", "blk.{}.attn_k_norm.weight"},
};
inline constexpr SlotNames kNormOfAllHeads[] = {
    {Slot::kAllQNorm, kNormOfEachHead[0].hf, kNormOfEachHead[0].gguf},
    {Slot::kAllKNorm, kNormOfEachHead[1].hf, kNormOfEachHead[1].gguf},
};
inline constexpr SlotNames kGatedFfn[] = {
    {Slot::kGate, "model.layers.{}.mlp.gate_proj.weight", "blk.{}.ffn_gate.weight"},
    {Slot::kUp, "model.layers.{}.mlp.up_proj.weight", "blk.{}.ffn_up.weight"},
    {Slot::kDown, "model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight"},
};
inline constexpr SlotNames kMixtralExperts[] = {
    {Slot::kRouter, "model.layers.{}.block_sparse_moe.gate.weight", "blk.{}.ffn_gate_inp.weight"},
    {Slot::kExpertGate, "model.layers.{}.block_sparse_moe.experts.{}.w1.weight",
     "blk.{}.ffn_gate_exps.weight[{}]"},
    {Slot::kExpertUp, "model.layers.{}.block_sparse_moe.experts.{}.w3.weight",
     "blk.{}.ffn_up_exps.weight[{}]"},
    {Slot::kExpertDown, "model.layers.{}.block_sparse_moe.experts.{}.w2.weight",
     "blk.{}.ffn_down_exps.weight[{}]"},
};
inline constexpr SlotNames kQwenExperts[] = {
    {Slot::kRouter, "model.layers.{}.mlp.gate.weight", "blk.{}.ffn_gate_inp.weight"},
    {Slot::kExpertGate, "model.layers.{}.mlp.experts.{}.gate_proj.weight", kMixtralExperts[1].gguf},
    {Slot::kExpertUp, "model.layers.{}.mlp.experts.{}.up_proj.weight", kMixtralExperts[2].gguf},
    {Slot::kExpertDown, "model.layers.{}.mlp.experts.{}.down_proj.weight", kMixtralExperts[3].gguf},
};
inline constexpr SlotNames kFfnBiases[] = {
    {Slot::kGateBias, "model.layers.{}.mlp.gate_proj.bias", "blk.{}.ffn_gate.bias"},
    {Slot::kUpBias, "model.layers.{}.mlp.up_proj.bias", "blk.{}.ffn_up.bias"},
    {Slot::kDownBias, "model.layers.{}.mlp.down_proj.bias", "blk.{}.ffn_down.bias"},
};
inline constexpr SlotNames kFusedPhi3[] = {
    {Slot::kQ, "model.layers.{}.self_attn.qkv_proj.weight", "blk.{}.attn_qkv.weight"},
    {Slot::kK, "model.layers.{}.self_attn.qkv_proj.weight", "blk.{}.attn_qkv.weight"},
    {Slot::kV, "model.layers.{}.self_attn.qkv_proj.weight", "blk.{}.attn_qkv.weight"},
    kAttention[3],
    {Slot::kGate, "model.layers.{}.mlp.gate_up_proj.weight", "blk.{}.ffn_up.weight"},
    {Slot::kUp, "model.layers.{}.mlp.gate_up_proj.weight", "blk.{}.ffn_up.weight"},
    kGatedFfn[2],
};

inline constexpr auto kLlamaSlots = Join(kEnds, kNormsBefore, kAttention, kGatedFfn, kFfnBiases);
inline constexpr auto kQwen3Slots =
    Join(kEnds, kNormsBefore, kAttention, kNormOfEachHead, kGatedFfn);
inline constexpr auto kMixtralSlots = Join(kEnds, kNormsBefore, kAttention, kMixtralExperts);
inline constexpr auto kQwen3MoeSlots =
    Join(kEnds, kNormsBefore, kAttention, kNormOfEachHead, kGatedFfn, kQwenExperts);
inline constexpr auto kOlmo2Slots =
    Join(kEnds, kNormsAfter, kAttention, kNormOfAllHeads, kGatedFfn);
inline constexpr auto kGemma2Slots = Join(kEnds, kNormsAround, kAttention, kGatedFfn);
inline constexpr auto kGemma3Slots =
    Join(kEnds, kNormsAround, kAttention, kGatedFfn, kNormOfEachHead);
inline constexpr auto kPhi3Slots = Join(kEnds, kNormsBefore, kFusedPhi3);

inline constexpr SlotNames kGpt2Slots[] = {
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

inline constexpr SlotNames kM2m100Slots[] = {
    {Slot::kEmbedding, "model.shared.weight", ""},
    {Slot::kFinalNorm, "model.decoder.layer_norm.weight", ""},
    {Slot::kFinalNormBias, "model.decoder.layer_norm.bias", ""},
    {Slot::kLmHead, "lm_head.weight", ""},
    {Slot::kAttentionNorm, "model.decoder.layers.{}.self_attn_layer_norm.weight", ""},
    {Slot::kAttentionNormBias, "model.decoder.layers.{}.self_attn_layer_norm.bias", ""},
    {Slot::kQ, "model.decoder.layers.{}.self_attn.q_proj.weight", ""},
    {Slot::kK, "model.decoder.layers.{}.self_attn.k_proj.weight", ""},
    {Slot::kV, "model.decoder.layers.{}.self_attn.v_proj.weight", ""},
    {Slot::kO, "model.decoder.layers.{}.self_attn.out_proj.weight", ""},
    {Slot::kQBias, "model.decoder.layers.{}.self_attn.q_proj.bias", ""},
    {Slot::kKBias, "model.decoder.layers.{}.self_attn.k_proj.bias", ""},
    {Slot::kVBias, "model.decoder.layers.{}.self_attn.v_proj.bias", ""},
    {Slot::kOBias, "model.decoder.layers.{}.self_attn.out_proj.bias", ""},
    {Slot::kCrossNorm, "model.decoder.layers.{}.encoder_attn_layer_norm.weight", ""},
    {Slot::kCrossNormBias, "model.decoder.layers.{}.encoder_attn_layer_norm.bias", ""},
    {Slot::kCrossQ, "model.decoder.layers.{}.encoder_attn.q_proj.weight", ""},
    {Slot::kCrossK, "model.decoder.layers.{}.encoder_attn.k_proj.weight", ""},
    {Slot::kCrossV, "model.decoder.layers.{}.encoder_attn.v_proj.weight", ""},
    {Slot::kCrossO, "model.decoder.layers.{}.encoder_attn.out_proj.weight", ""},
    {Slot::kCrossQBias, "model.decoder.layers.{}.encoder_attn.q_proj.bias", ""},
    {Slot::kCrossKBias, "model.decoder.layers.{}.encoder_attn.k_proj.bias", ""},
    {Slot::kCrossVBias, "model.decoder.layers.{}.encoder_attn.v_proj.bias", ""},
    {Slot::kCrossOBias, "model.decoder.layers.{}.encoder_attn.out_proj.bias", ""},
    {Slot::kFfnNorm, "model.decoder.layers.{}.final_layer_norm.weight", ""},
    {Slot::kFfnNormBias, "model.decoder.layers.{}.final_layer_norm.bias", ""},
    {Slot::kUp, "model.decoder.layers.{}.fc1.weight", ""},
    {Slot::kDown, "model.decoder.layers.{}.fc2.weight", ""},
    {Slot::kUpBias, "model.decoder.layers.{}.fc1.bias", ""},
    {Slot::kDownBias, "model.decoder.layers.{}.fc2.bias", ""},
};
inline constexpr SlotNames kM2m100EncoderSlots[] = {
    {Slot::kFinalNorm, "model.encoder.layer_norm.weight", ""},
    {Slot::kFinalNormBias, "model.encoder.layer_norm.bias", ""},
    {Slot::kAttentionNorm, "model.encoder.layers.{}.self_attn_layer_norm.weight", ""},
    {Slot::kAttentionNormBias, "model.encoder.layers.{}.self_attn_layer_norm.bias", ""},
    {Slot::kQ, "model.encoder.layers.{}.self_attn.q_proj.weight", ""},
    {Slot::kK, "model.encoder.layers.{}.self_attn.k_proj.weight", ""},
    {Slot::kV, "model.encoder.layers.{}.self_attn.v_proj.weight", ""},
    {Slot::kO, "model.encoder.layers.{}.self_attn.out_proj.weight", ""},
    {Slot::kQBias, "model.encoder.layers.{}.self_attn.q_proj.bias", ""},
    {Slot::kKBias, "model.encoder.layers.{}.self_attn.k_proj.bias", ""},
    {Slot::kVBias, "model.encoder.layers.{}.self_attn.v_proj.bias", ""},
    {Slot::kOBias, "model.encoder.layers.{}.self_attn.out_proj.bias", ""},
    {Slot::kFfnNorm, "model.encoder.layers.{}.final_layer_norm.weight", ""},
    {Slot::kFfnNormBias, "model.encoder.layers.{}.final_layer_norm.bias", ""},
    {Slot::kUp, "model.encoder.layers.{}.fc1.weight", ""},
    {Slot::kDown, "model.encoder.layers.{}.fc2.weight", ""},
    {Slot::kUpBias, "model.encoder.layers.{}.fc1.bias", ""},
    {Slot::kDownBias, "model.encoder.layers.{}.fc2.bias", ""},
};
// Models in CTranslate2's files, whose tensors get the names of M2M-100's (ctranslate2.h).
inline constexpr SlotNames kTransformerOwn[] = {
    {Slot::kPositions, "model.decoder.embed_positions.weights", ""},
    {Slot::kHeadBias, "lm_head.bias", ""},
};
inline constexpr SlotNames kTransformerEncoderOwn[] = {
    {Slot::kSourceEmbedding, "model.encoder.embed_tokens.weight", ""},
    {Slot::kPositions, "model.encoder.embed_positions.weights", ""},
};
inline constexpr auto kTransformerSlots = Join(kM2m100Slots, kTransformerOwn);
inline constexpr auto kTransformerEncoderSlots = Join(kM2m100EncoderSlots, kTransformerEncoderOwn);
inline constexpr std::string_view kM2m100Aliases[] = {
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
};

}  // namespace kvasir::slot_names
