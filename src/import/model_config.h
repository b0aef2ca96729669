// ModelConfig: the shape of a model, whatever file it came from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/status.h"
#include "kvasir/types.h"
#include "tensor/activation.h"
#include "tensor/router.h"

namespace kvasir {

enum class RopeType : uint8_t { kDefault, kLinear, kLlama3, kYarn, kLongRope };

// Rotary embedding (Su et al., 2021). Pairs element i with i + half of the rotated numbers.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                                   // linear, llama3, yarn
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double original_max_positions = 8192;                  // llama3, yarn, longrope
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  bool truncate = true;                                  // yarn: its range ends at whole dimensions
  double attention_factor = 1.0;                         // yarn, longrope: multiplies cos and sin
  // The first numbers of each head that are rotated; absent: all.
  std::optional<uint32_t> rotated_dims;
  // Not empty: one for each pair, each frequency is divided by its factor, beside `type`. GGUF
  // files say llama3 (and others) this way.
  std::vector<float> freq_factors;
  // longrope: used instead of freq_factors, for all tokens of a sequence that has more than
  // original_max_positions.
  std::vector<float> long_freq_factors;
};

// Tells whether longrope rotates a sequence of so many tokens by its long factors.
inline bool UsesLongFactors(const RopeConfig& rope, uint64_t tokens) {
  return rope.type == RopeType::kLongRope &&
         static_cast<double>(tokens) > rope.original_max_positions;
}

// Returns longrope's attention factor where the file names none: sqrt(1 + ln(factor) /
// ln(original)), 1 where the context was not extended. Rounded to f32, as GGUF files store it.
double LongRopeAttentionFactor(double factor, double original_max_positions);

// The largest figures that are believed; beyond them a file is wrong, not large.
struct ConfigLimits {
  static constexpr uint32_t kVocabSize = 1u << 24, kHiddenSize = 1u << 20, kLayers = 1u << 14;
  static constexpr uint32_t kHeads = 1u << 14, kHeadDim = 512, kFfnSize = 1u << 22;
  static constexpr uint32_t kPositions = 1u << 30;
  static constexpr uint32_t kExperts = 1u << 12;
  // Experts of all layers: each is a few tensors with names. The largest known models have 2^15.
  static constexpr uint64_t kAllExperts = uint64_t{1} << 18;
  // Numbers of all tensors together; as f32 they take 2^50 bytes, so that no sum of sizes wraps.
  static constexpr uint64_t kNumbers = uint64_t{1} << 48;
};

enum class NormKind : uint8_t { kRms, kLayer };
// Where the norms of a branch (attention or FFN) stand: on its input, on its output, or on both.
enum class NormPlace : uint8_t { kBefore, kAfter, kAround };
// RMSNorm of Q and K before RoPE: none, of each head, or of all heads together.
enum class HeadNorm : uint8_t { kNone, kEach, kAll };
// down(activation(gate x) * (up x)), down(activation(up x)), or the weighted sum of some experts,
// each of them gated.
enum class FfnKind : uint8_t { kGated, kPlain, kExperts };

// Experts (Shazeer et al., 2017): a router gives each row the `chosen` of `count` whose logits are
// largest.
struct ExpertsConfig {
  uint32_t count = 0, chosen = 0;
  uint32_t ffn_size = 0;  // of one
  Routing routing = Routing::kChosen;
  std::vector<bool> layers;  // [num_layers]: whether the FFN has experts; empty: all have
};

// What one layer is made of: norms, an attention variant and an FFN variant. A family is a row of
// the architecture table that names these for each of its layers; nothing that computes a layer
// knows a family.
struct LayerSpec {
  NormKind norm = NormKind::kRms;
  NormPlace norm_place = NormPlace::kBefore;
  HeadNorm head_norm = HeadNorm::kNone;
  FfnKind ffn = FfnKind::kGated;
  Activation activation = Activation::kSilu;
  bool rotated = true;      // by RoPE
  bool local_rope = false;  // by ModelConfig::local_rope
  uint32_t window = 0;      // a query at p sees p - window + 1 .. p; 0: all up to p
  bool cross = false;       // attention over the source follows that over the own tokens
};

// What the encoder of an encoder-decoder model has apart from the decoder, and what only such
// models have. Width, norms, activation and kind of positions are the same in both halves.
struct EncoderConfig {
  uint32_t num_layers = 0;
  uint32_t num_heads = 0;
  uint32_t head_dim = 0;
  uint32_t ffn_size = 0;
  uint32_t first_position = 0;  // of sinusoids: the first token's number
  TokenId decoder_start = 0;    // what the decoder reads first
  // Rows of the encoder's embedding. Absent: it is the decoder's.
  std::optional<uint32_t> vocab_size;
  // The languages of a model for one pair of them: its vocabulary has no token of a language.
  std::optional<LanguagePair> pair;
};

inline bool NormsInput(const LayerSpec& spec) { return spec.norm_place != NormPlace::kAfter; }
inline bool NormsOutput(const LayerSpec& spec) { return spec.norm_place != NormPlace::kBefore; }

// The shape of a model. In an encoder-decoder model, figures without a name are the decoder's.
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
  double rms_norm_eps = 1e-5;  // of all norms, LayerNorm included
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;  // of layers with a window; absent: rope
  std::vector<bool> rotated_layers;      // [num_layers]: LayerSpec::rotated; empty: all are
  Activation activation = Activation::kSilu;
  double embedding_multiplier = 1.0, residual_multiplier = 1.0;
  double logits_scaling = 1.0;                 // divides the logits
  std::optional<double> attention_multiplier;  // of q . k; absent: 1/sqrt(head_dim)
  // cap * tanh(x / cap) of attention scores and of logits; absent: as they are.
  std::optional<double> attention_softcap, logits_softcap;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, head_bias = false;
  bool sinusoids = false;  // positions are sinusoids (Vaswani et al., 2017), not a table or RoPE
  bool has_source_embedding = false;  // of EncoderOf: that encoder has an embedding apart
  bool tied_embeddings = false;
  std::optional<ExpertsConfig> experts;
  std::optional<EncoderConfig> encoder;
  std::vector<uint32_t> windows;  // [num_layers]: LayerSpec::window of each; empty: all are 0
  std::vector<TokenId> bos, eos;  // what the model's files say (generation_config included)
  FimTokens fim;                  // of GGUF files; no logit depends on it
};

// Returns the encoder's layers as those of a model without one. REQUIRES: config.encoder.
ModelConfig EncoderOf(const ModelConfig& config);

// Checks what the figures must be to each other, beyond their own limits: kInvalidArgument, naming
// `file`.
Status ValidateConfig(const ModelConfig& config, const std::string& file);

// Returns the canonical text of everything here that decides KV: goes into Identity. (Not the
// context's length nor special ids: they decide what is asked, not what is computed.)
std::string CanonicalText(const ModelConfig& config);

}  // namespace kvasir
