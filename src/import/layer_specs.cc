#include "import/layer_specs.h"

namespace kvasir {

bool HasExperts(const ModelConfig& config, uint32_t layer) {
  return config.experts && (config.experts->layers.empty() || config.experts->layers[layer]);
}

// Describes a layer of Llama. A window as long as the model's own context counts as full.
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

LayerSpec M2m100Layer(const ModelConfig& config, uint32_t layer) {
  LayerSpec spec = Gpt2Layer(config, layer);
  spec.cross = config.encoder.has_value();
  return spec;
}

}  // namespace kvasir
