// ModelConfig: the shape of a decoder-only model, whatever file it came from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvasir/types.h"

namespace kvasir {

enum class RopeType : uint8_t { kDefault, kLinear, kLlama3 };

// Rotary embedding (Su et al., 2021). Pairs element i with i + head_dim/2.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;  // linear, llama3
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double original_max_positions = 8192;                  // llama3
};

struct ModelConfig {
  std::string architecture;  // "llama"
  uint32_t vocab_size = 0;   // rows of the embedding
  uint32_t hidden_size = 0;
  uint32_t num_layers = 0;
  uint32_t num_heads = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t ffn_size = 0;
  uint32_t max_positions = 0;
  double rms_norm_eps = 1e-5;
  RopeConfig rope;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool tied_embeddings = false;
  std::vector<TokenId> bos, eos;  // what the model's files say (generation_config included)
};

// Canonical text of everything here that decides KV: goes into Identity.
std::string CanonicalText(const ModelConfig& config);

}  // namespace kvasir
