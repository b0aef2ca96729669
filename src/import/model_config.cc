#include "import/model_config.h"

#include <fmt/ranges.h>

#include <cmath>
#include <span>

#include "base/bytes.h"
#include "base/check.h"
#include "base/result.h"
#include "import/architecture.h"
#include "simd/math.h"

namespace kvasir {
namespace {

// Checks factors: one for each pair of rotated numbers.
Status CheckFactors(const char* name, std::span<const float> factors, uint32_t rotated,
                    const ModelConfig& config, const std::string& file) {
  if (factors.size() != rotated / 2) {
    return Fail(Code::kInvalidArgument,
                "{}: {} {}s for {} rotated numbers of a head_dim of {}; it must be {}", file,
                factors.size(), name, rotated, config.head_dim, rotated / 2);
  }
  for (const float factor : factors) {
    if (factor > 0 && std::isfinite(factor)) continue;
    return Fail(Code::kInvalidArgument, "{}: a {} is {}; it must be positive and finite", file,
                name, factor);
  }
  return {};
}

Status CheckLongRope(const RopeConfig& rope, uint32_t rotated, const ModelConfig& config,
                     const std::string& file) {
  const bool sane = rope.original_max_positions >= 2 &&
                    rope.original_max_positions <= ConfigLimits::kPositions &&
                    rope.attention_factor >= 1e-6 && rope.attention_factor <= 1e6;
  if (!sane) {
    return Fail(Code::kInvalidArgument,
                "{}: RoPE longrope needs original_max_position_embeddings >= 2 and an attention "
                "factor in [1e-6, 1e6], not {} and {}",
                file, rope.original_max_positions, rope.attention_factor);
  }
  KV_TRY(CheckFactors("short RoPE factor", rope.freq_factors, rotated, config, file));
  return CheckFactors("long RoPE factor", rope.long_freq_factors, rotated, config, file);
}

Status CheckRope(const RopeConfig& rope, const ModelConfig& config, const std::string& file) {
  if (!(rope.theta >= 1) || !std::isfinite(rope.theta)) {
    return Fail(Code::kInvalidArgument, "{}: RoPE theta is {}; it must be at least 1", file,
                rope.theta);
  }
  if (!(rope.factor >= 1) || !std::isfinite(rope.factor)) {
    return Fail(Code::kInvalidArgument, "{}: RoPE scaling factor is {}; it must be at least 1",
                file, rope.factor);
  }
  if (rope.type == RopeType::kLlama3) {
    const bool sane = rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor &&
                      std::isfinite(rope.high_freq_factor) && rope.original_max_positions >= 1 &&
                      rope.original_max_positions <= ConfigLimits::kPositions;
    if (!sane) {
      return Fail(Code::kInvalidArgument,
                  "{}: RoPE llama3 needs 0 < low_freq_factor < high_freq_factor and "
                  "original_max_position_embeddings >= 1, not {}, {} and {}",
                  file, rope.low_freq_factor, rope.high_freq_factor, rope.original_max_positions);
    }
  }
  if (rope.type == RopeType::kYarn) {
    const bool sane = rope.beta_slow >= 1e-6 && rope.beta_fast > rope.beta_slow &&
                      rope.beta_fast <= 1e6 && rope.original_max_positions >= 1 &&
                      rope.original_max_positions <= ConfigLimits::kPositions &&
                      rope.attention_factor >= 1e-6 && rope.attention_factor <= 1e6 &&
                      rope.theta > 1;
    if (!sane) {
      return Fail(Code::kInvalidArgument,
                  "{}: RoPE yarn needs 1e-6 <= beta_slow < beta_fast <= 1e6, an attention factor "
                  "between these, theta above 1 and original_max_position_embeddings >= 1, not {}, "
                  "{}, {}, {} and {}",
                  file, rope.beta_slow, rope.beta_fast, rope.attention_factor, rope.theta,
                  rope.original_max_positions);
    }
  }
  const uint32_t rotated = rope.rotated_dims.value_or(config.head_dim);
  if (rotated > config.head_dim || rotated % 2 != 0) {
    return Fail(Code::kInvalidArgument,
                "{}: RoPE rotates {} numbers of each head, which must be even and at most the "
                "head_dim of {}",
                file, rotated, config.head_dim);
  }
  if (rope.type == RopeType::kLongRope) return CheckLongRope(rope, rotated, config, file);
  if (rope.freq_factors.empty()) return {};
  return CheckFactors("RoPE frequency factor", rope.freq_factors, rotated, config, file);
}

Status CheckMultipliers(const ModelConfig& config, const std::string& file) {
  const std::pair<const char*, double> multipliers[] = {
      {"embedding multiplier", config.embedding_multiplier},
      {"residual multiplier", config.residual_multiplier},
      {"attention multiplier", config.attention_multiplier.value_or(1)},
      {"logits scaling", config.logits_scaling},
      {"attention soft-cap", config.attention_softcap.value_or(1)},
      {"logits soft-cap", config.logits_softcap.value_or(1)}};
  for (const auto& [name, value] : multipliers) {
    if (!(value >= 1e-30 && value <= 1e30)) {  // a normal f32
      return Fail(Code::kInvalidArgument, "{}: the {} is {}, it must be in [1e-30, 1e30]", file,
                  name, value);
    }
  }
  return {};
}

Status CheckIds(const std::vector<TokenId>& ids, const char* what, const ModelConfig& config,
                const std::string& file) {
  for (TokenId id : ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= config.vocab_size) {
      return Fail(Code::kInvalidArgument, "{}: {} id {} is not in the vocabulary of {}", file, what,
                  id, config.vocab_size);
    }
  }
  return {};
}

// Counts the numbers that the tensors of these slots hold; absent: more than 2^64. O(slots x
// layers).
std::optional<uint64_t> NumbersOf(std::span<const SlotNames> slots, const ModelConfig& config) {
  std::optional<uint64_t> sum = 0;
  for (const SlotNames& names : slots) {
    const SlotTraits& traits = TraitsOf(names.slot);
    const bool of_layer = names.hf.find("{}") != names.hf.npos;
    uint64_t tensors = 0;
    for (uint32_t layer = 0; layer < (of_layer ? config.num_layers : 1); ++layer) {
      if (Holds(traits.condition, config, layer)) tensors += TensorsOf(names.slot, config);
    }
    auto numbers = CheckedMul(tensors, SizeOf(traits.rows, config));
    if (numbers && traits.columns) numbers = CheckedMul(*numbers, SizeOf(*traits.columns, config));
    sum = numbers ? CheckedAdd(*sum, *numbers) : std::nullopt;
    if (!sum) return std::nullopt;
  }
  return sum;
}

std::optional<uint64_t> NumbersOf(const ModelConfig& config) {
  const Architecture& row = ArchitectureOf(config);
  const auto decoder = NumbersOf(row.slots, config);
  if (!config.encoder || !decoder) return decoder;
  const auto encoder = NumbersOf(row.encoder_slots, EncoderOf(config));
  return encoder ? CheckedAdd(*decoder, *encoder) : std::nullopt;
}

std::string TextOf(const std::optional<uint64_t>& number) {
  return number ? std::to_string(*number) : "more than 2^64";
}

Status CheckSize(const ModelConfig& config, const std::string& file) {
  if (config.experts &&
      uint64_t{config.num_layers} * config.experts->count > ConfigLimits::kAllExperts) {
    return Fail(Code::kInvalidArgument,
                "{}: {} layers of {} experts are {} experts; at most {} are supported", file,
                config.num_layers, config.experts->count,
                uint64_t{config.num_layers} * config.experts->count, ConfigLimits::kAllExperts);
  }
  const std::optional<uint64_t> numbers = NumbersOf(config);
  if (!numbers || *numbers > ConfigLimits::kNumbers) {
    return Fail(Code::kInvalidArgument,
                "{}: {} layers of these sizes have {} weights; at most 2^48 are supported", file,
                config.num_layers, TextOf(numbers));
  }
  const auto of_token =
      CheckedMul(uint64_t{config.encoder ? 4u : 2u} * config.num_layers * config.num_kv_heads,
                 uint64_t{config.head_dim});
  const auto kv = of_token ? CheckedMul(*of_token, uint64_t{config.max_positions}) : of_token;
  if (kv && *kv <= ConfigLimits::kNumbers) return {};
  return Fail(
      Code::kInvalidArgument,
      "{}: K and V of {} layers and {} positions have {} numbers; at most 2^48 are supported", file,
      config.num_layers, config.max_positions, TextOf(kv));
}

// Returns what follows type and theta in CanonicalText.
std::string RopeText(const RopeConfig& rope) {
  std::string text;
  if (rope.type != RopeType::kDefault) text += fmt::format(" factor={:a}", rope.factor);
  if (rope.type == RopeType::kLlama3) {
    text += fmt::format(" low={:a} high={:a} original={:a}", rope.low_freq_factor,
                        rope.high_freq_factor, rope.original_max_positions);
  }
  if (!rope.freq_factors.empty()) {
    text += " freq_factors=";
    for (float factor : rope.freq_factors) text += fmt::format("{:a},", factor);
  }
  if (rope.type == RopeType::kYarn) {
    text += fmt::format(" original={:a} beta_fast={:a} beta_slow={:a} truncate={:d} attention={:a}",
                        rope.original_max_positions, rope.beta_fast, rope.beta_slow, rope.truncate,
                        rope.attention_factor);
  }
  if (rope.type == RopeType::kLongRope) {
    text += fmt::format(" original={:a} attention={:a} long_factors=", rope.original_max_positions,
                        rope.attention_factor);
    for (float factor : rope.long_freq_factors) text += fmt::format("{:a},", factor);
  }
  if (rope.rotated_dims) text += fmt::format(" rotated_dims={}", *rope.rotated_dims);
  return text;
}

std::string Bits(const std::vector<bool>& flags) {
  std::string text;
  for (const bool flag : flags) text += flag ? '1' : '0';
  return text;
}

}  // namespace

double LongRopeAttentionFactor(double factor, double original_max_positions) {
  if (!(factor > 1 && original_max_positions > 1)) return 1;
  const double square = 1 + Log(factor) / Log(original_max_positions);
  return static_cast<float>(__builtin_sqrt(square));
}

ModelConfig EncoderOf(const ModelConfig& config) {
  KV_CHECK(config.encoder);
  ModelConfig encoder = config;
  encoder.encoder.reset();
  encoder.num_layers = config.encoder->num_layers;
  encoder.num_heads = encoder.num_kv_heads = config.encoder->num_heads;
  encoder.head_dim = config.encoder->head_dim;
  encoder.ffn_size = config.encoder->ffn_size;
  encoder.has_source_embedding = config.encoder->vocab_size.has_value();
  if (config.encoder->vocab_size) encoder.vocab_size = *config.encoder->vocab_size;
  return encoder;
}

Status ValidateConfig(const ModelConfig& config, const std::string& file) {
  if (config.num_heads % config.num_kv_heads != 0) {
    return Fail(Code::kInvalidArgument,
                "{}: {} attention heads are not a multiple of {} key/value heads", file,
                config.num_heads, config.num_kv_heads);
  }
  if (config.head_dim % 2 != 0) {
    return Fail(Code::kInvalidArgument, "{}: head_dim {} is odd: RoPE rotates pairs", file,
                config.head_dim);
  }
  if (!(config.rms_norm_eps > 0 && config.rms_norm_eps < 1)) {
    return Fail(Code::kInvalidArgument, "{}: the norms' epsilon is {}; it must be in (0, 1)", file,
                config.rms_norm_eps);
  }
  KV_TRY(CheckRope(config.rope, config, file));
  if (config.local_rope) {
    KV_TRY(CheckRope(*config.local_rope, config, file));
    if (config.local_rope->type == RopeType::kLongRope) {
      return Fail(Code::kUnsupported,
                  "{}: RoPE longrope in layers with a window is not supported; it must be that of "
                  "the full layers",
                  file);
    }
  }
  KV_TRY(CheckMultipliers(config, file));
  if (config.experts && config.experts->chosen > config.experts->count) {
    return Fail(Code::kInvalidArgument,
                "{}: each token goes to {} experts, but there are {}; it must be 1 to {}", file,
                config.experts->chosen, config.experts->count, config.experts->count);
  }
  KV_TRY(CheckSize(config, file));
  if (config.encoder) {
    if (config.encoder->head_dim % 2 != 0) {
      return Fail(Code::kInvalidArgument, "{}: head_dim {} of the encoder is odd", file,
                  config.encoder->head_dim);
    }
    KV_TRY(CheckIds({config.encoder->decoder_start}, "decoder-start", config, file));
  }
  KV_TRY(CheckIds(config.bos, "beginning-of-sequence", config, file));
  return CheckIds(config.eos, "end-of-sequence", config, file);
}

std::string CanonicalText(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  // Fractions in hexadecimal: exact, and the same text on every machine.
  std::string text = fmt::format(
      "model-config-1 architecture={} vocab={} hidden={} layers={} heads={} kv_heads={} "
      "head_dim={} "
      "ffn={} eps={:a} qkv_bias={:d} o_bias={:d} mlp_bias={:d} tied={:d} rope={} theta={:a}",
      config.architecture, config.vocab_size, config.hidden_size, config.num_layers,
      config.num_heads, config.num_kv_heads, config.head_dim, config.ffn_size, config.rms_norm_eps,
      config.qkv_bias, config.o_bias, config.mlp_bias, config.tied_embeddings,
      static_cast<int>(rope.type), rope.theta);
  text += RopeText(rope);
  if (!config.rotated_layers.empty()) {
    text += " rotated_layers=" + Bits(config.rotated_layers);
  }
  if (config.activation != Activation::kSilu) {
    text += fmt::format(" activation={}", static_cast<int>(config.activation));
  }
  if (config.embedding_multiplier != 1) {
    text += fmt::format(" embedding_multiplier={:a}", config.embedding_multiplier);
  }
  if (config.residual_multiplier != 1) {
    text += fmt::format(" residual_multiplier={:a}", config.residual_multiplier);
  }
  if (config.logits_scaling != 1) {
    text += fmt::format(" logits_scaling={:a}", config.logits_scaling);
  }
  if (config.attention_multiplier) {
    text += fmt::format(" attention_multiplier={:a}", *config.attention_multiplier);
  }
  if (config.attention_softcap) {
    text += fmt::format(" attention_softcap={:a}", *config.attention_softcap);
  }
  if (config.logits_softcap) text += fmt::format(" logits_softcap={:a}", *config.logits_softcap);
  if (config.local_rope) {
    text += fmt::format(" local_rope={} theta={:a}", static_cast<int>(config.local_rope->type),
                        config.local_rope->theta);
    text += RopeText(*config.local_rope);
  }
  if (config.experts) {
    const ExpertsConfig& experts = *config.experts;
    text += fmt::format(" experts={} chosen={} expert_ffn={} routing={}", experts.count,
                        experts.chosen, experts.ffn_size, static_cast<int>(experts.routing));
    if (!experts.layers.empty()) text += " expert_layers=" + Bits(experts.layers);
  }
  if (config.encoder) {
    const EncoderConfig& encoder = *config.encoder;
    text += fmt::format(" encoder_layers={} heads={} head_dim={} ffn={} first_position={}",
                        encoder.num_layers, encoder.num_heads, encoder.head_dim, encoder.ffn_size,
                        encoder.first_position);
    if (encoder.vocab_size) text += fmt::format(" source_vocab={}", *encoder.vocab_size);
    if (!config.sinusoids) text += " stored_positions";
  }
  if (config.head_bias) text += " head_bias";
  if (!config.windows.empty()) text += fmt::format(" windows={}", fmt::join(config.windows, ","));
  return text;
}

}  // namespace kvasir
