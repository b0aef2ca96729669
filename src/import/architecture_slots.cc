// What is known of each slot: the shape of its tensor, when it must be there, and where it is kept.
#include <cstdlib>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.h"
#include "import/architecture.h"
#include "import/layer_specs.h"

namespace kvasir {
namespace {

using enum Extent;
constexpr SlotTraits kTraits[] = {
    {Slot::kEmbedding, kVocab, kHidden, Condition::kAlways, false},
    {Slot::kFinalNorm, kHidden, {}, Condition::kAlways, false},
    {Slot::kFinalNormBias, kHidden, {}, Condition::kAlways, false},
    {Slot::kLmHead, kVocab, kHidden, Condition::kUntied, false},
    {Slot::kPositions, kPositions, kHidden, Condition::kStoredPositions, false},
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
    {Slot::kCrossNorm, kHidden, {}, Condition::kAlways, false},
    {Slot::kCrossNormBias, kHidden, {}, Condition::kAlways, false},
    {Slot::kCrossQ, kQueries, kHidden, Condition::kAlways, false},
    {Slot::kCrossK, kKeyValues, kHidden, Condition::kAlways, false},
    {Slot::kCrossV, kKeyValues, kHidden, Condition::kAlways, false},
    {Slot::kCrossO, kHidden, kQueries, Condition::kAlways, false},
    {Slot::kCrossQBias, kQueries, {}, Condition::kQkvBias, false},
    {Slot::kCrossKBias, kKeyValues, {}, Condition::kQkvBias, false},
    {Slot::kCrossVBias, kKeyValues, {}, Condition::kQkvBias, false},
    {Slot::kCrossOBias, kHidden, {}, Condition::kOBias, false},
    {Slot::kRouter, kExperts, kHidden, Condition::kExperts, false},
    {Slot::kHeadBias, kVocab, {}, Condition::kHeadBias, false},
    {Slot::kSourceEmbedding, kVocab, kHidden, Condition::kOwnEmbedding, false},
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
  std::abort();  // -O0 does not see that the check ends it
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
    case Condition::kHeadBias:
      return config.head_bias;
    case Condition::kDense:
      return !HasExperts(config, layer);
    case Condition::kExperts:
      return HasExperts(config, layer);
    case Condition::kStoredPositions:
      return !config.sinusoids;
    case Condition::kOwnEmbedding:
      return config.has_source_embedding;
  }
  KV_CHECK(false);
  std::abort();  // -O0 does not see that the check ends it
}

const SlotTraits& TraitsOf(Slot slot) { return kTraits[static_cast<size_t>(slot)]; }

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

void Place(Half half, Slot slot, MatrixSource source, uint32_t layer, ImportedModel& model) {
  if (half == Half::kEncoder) {
    EncoderTensors& encoder = *model.encoder;
    if (slot == Slot::kFinalNorm) {
      encoder.final_norm = std::move(source.view);
    } else if (slot == Slot::kFinalNormBias) {
      encoder.final_norm_bias = std::move(source.view);
    } else if (slot == Slot::kSourceEmbedding) {
      encoder.embedding = std::move(source.view);
    } else if (slot == Slot::kPositions) {
      encoder.positions = std::move(source.view);
    } else {
      encoder.layers[layer].Add(slot, std::move(source));
    }
    return;
  }
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
    case Slot::kHeadBias:
      model.head_bias = std::move(source.view);
      return;
    case Slot::kPositions:
      model.positions = std::move(source.view);
      return;
    default:
      model.layers[layer].Add(slot, std::move(source));
  }
}

}  // namespace kvasir
