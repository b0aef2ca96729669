#include "import/gguf_rope.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/result.h"
#include "simd/math.h"

namespace kvasir {

const StoredTensor* FindTensor(const GgufFile& gguf, const std::string& name) {
  const auto found = std::ranges::find(gguf.tensors, name, &StoredTensor::name);
  return found == gguf.tensors.end() ? nullptr : &*found;
}

namespace {

// Reads frequency factors, [rotated numbers / 2] f32. `rope_freqs.weight`: llama.cpp's converter
// computes them for llama3 scaling.
Result<std::vector<float>> ReadFreqFactors(const GgufFile& gguf, const std::string& name,
                                           const std::string& file) {
  const StoredTensor* tensor = FindTensor(gguf, name);
  if (tensor == nullptr) return std::vector<float>();
  if (tensor->dtype != DType::kF32 || tensor->shape.size() != 1 ||
      tensor->shape[0] > ConfigLimits::kHeadDim) {
    return Fail(Code::kUnsupported, "{}: tensor '{}' must be a list of at most {} F32 numbers",
                file, name, ConfigLimits::kHeadDim);
  }
  if (tensor->bytes.empty()) return std::vector<float>(tensor->shape[0], 1.0f);  // only the header
  std::vector<float> factors(tensor->bytes.size() / sizeof(float));
  if (!factors.empty()) std::memcpy(factors.data(), tensor->bytes.data(), tensor->bytes.size());
  return factors;
}

// Reads figures that only yarn has. The attention factor is the one that the file names; llama.cpp
// has always 1 + log(factor) / 10 times rope.scaling.attn_factor.
void ReadYarn(Metadata& keys, double factor, const ModelConfig& config, RopeConfig& rope) {
  rope.type = RopeType::kYarn;
  rope.factor = factor;
  rope.beta_fast = keys.Number("rope.scaling.yarn_beta_fast", rope.beta_fast);
  rope.beta_slow = keys.Number("rope.scaling.yarn_beta_slow", rope.beta_slow);
  rope.original_max_positions = keys.Count("rope.scaling.original_context_length",
                                           ConfigLimits::kPositions, config.max_positions);
  const double inferred = factor > 1 ? 0.1 * Log(factor) + 1 : 1.0;
  rope.attention_factor = keys.Number("rope.scaling.yarn_attn_factor", inferred) *
                          keys.Number("rope.scaling.attn_factor", 1.0);
}

constexpr const char* kShortFactors = "rope_factors_short.weight";
constexpr const char* kLongFactors = "rope_factors_long.weight";

// Reads the factors of longrope. The files name the type only by these tensors.
Status ReadLongRope(const GgufFile& gguf, Metadata& keys, const ModelConfig& config,
                    const std::string& file, RopeConfig& rope) {
  for (const char* name : {kShortFactors, kLongFactors}) {
    if (FindTensor(gguf, name) != nullptr) continue;
    return Fail(Code::kInvalidArgument,
                "{}: RoPE longrope needs the tensors '{}' and '{}'; '{}' is missing", file,
                kShortFactors, kLongFactors, name);
  }
  rope.type = RopeType::kLongRope;
  rope.original_max_positions =
      keys.Count("rope.scaling.original_context_length", ConfigLimits::kPositions);
  KV_TRY(keys.status());
  const double factor = config.max_positions / rope.original_max_positions;
  rope.attention_factor = keys.Number("rope.scaling.attn_factor",
                                      LongRopeAttentionFactor(factor, rope.original_max_positions));
  KV_ASSIGN(rope.freq_factors, ReadFreqFactors(gguf, kShortFactors, file));
  KV_ASSIGN(rope.long_freq_factors, ReadFreqFactors(gguf, kLongFactors, file));
  return keys.status();
}

}  // namespace

Result<RopeConfig> ReadGgufRope(const GgufFile& gguf, Metadata& keys, const ModelConfig& config,
                                const std::string& file) {
  RopeConfig rope;
  rope.theta = keys.Number("rope.freq_base", 10000.0);
  const uint32_t rotated =
      keys.Count("rope.dimension_count", ConfigLimits::kHeadDim, config.head_dim);
  if (rotated != config.head_dim) rope.rotated_dims = rotated;
  const std::string type = keys.Text("rope.scaling.type").value_or("linear");
  const double factor = keys.Number("rope.scaling.factor", keys.Number("rope.scale_linear", 0.0));
  KV_TRY(keys.status());
  if (FindTensor(gguf, kShortFactors) != nullptr || FindTensor(gguf, kLongFactors) != nullptr) {
    KV_TRY(ReadLongRope(gguf, keys, config, file, rope));
    return rope;
  }
  if (type == "linear") {
    if (factor != 0 && factor != 1) {  // 0: llama.cpp's word for none
      rope.type = RopeType::kLinear;
      rope.factor = factor;
    }
  } else if (type == "yarn") {
    ReadYarn(keys, factor == 0 ? 1 : factor, config, rope);
    KV_TRY(keys.status());
  } else if (type != "none") {
    return Fail(Code::kUnsupported,
                "{}: RoPE scaling '{}' is not supported yet; supported: none, linear, yarn, "
                "llama3 as rope_freqs.weight, and longrope as {} and {}",
                file, type.substr(0, 80), kShortFactors, kLongFactors);
  }
  KV_ASSIGN(rope.freq_factors, ReadFreqFactors(gguf, "rope_freqs.weight", file));
  return rope;
}

}  // namespace kvasir
