// What each layer of a family is made of: the functions that rows of the architecture table name.
#pragma once

#include "import/model_config.h"

namespace kvasir {

// Tells whether the FFN of a layer has experts.
bool HasExperts(const ModelConfig& config, uint32_t layer);

LayerSpec LlamaLayer(const ModelConfig& config, uint32_t layer);
LayerSpec Qwen3Layer(const ModelConfig& config, uint32_t layer);
LayerSpec Olmo2Layer(const ModelConfig& config, uint32_t layer);
LayerSpec Gemma2Layer(const ModelConfig& config, uint32_t layer);
LayerSpec Gemma3Layer(const ModelConfig& config, uint32_t layer);
LayerSpec Gpt2Layer(const ModelConfig& config, uint32_t layer);
LayerSpec M2m100Layer(const ModelConfig& config, uint32_t layer);

}  // namespace kvasir
