// How the next token is chosen: SamplingParams, SamplingDefaults, BeamParams.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir {

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  uint32_t top_k = 0;        // 0: all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // over prompt and answer (CTRL, Keskar et al., 2019)
  float presence_penalty = 0.0f;    // over the answer (OpenAI)
  float frequency_penalty = 0.0f;
  // All three penalties are over the last so many tokens of prompt and answer (llama.cpp).
  std::optional<uint32_t> penalty_last_n;
  std::vector<std::pair<TokenId, float>> logit_bias;
  bool temperature_last = false;  // after top_k, top_p and min_p (llama.cpp), not before them
  bool infill = false;            // then only what sampling/infill_cut.h keeps (llama.cpp)
  std::optional<uint64_t> seed;   // absent: a random one, which the receipt does not show
};

// What a model's makers say of sampling (generation_config.json), for requests that do not.
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<uint32_t> top_k;

  SamplingParams Over(SamplingParams params) const;  // `params`, with what is said here
  // "temperature 0.6, top_k 20"; absent: nothing is said.
  std::optional<std::string> Text() const;
};

// kInvalidArgument naming the field that is outside its range (kvasir/sampling_ranges.h) or not
// finite, "samplers" for infill without a top_k of 1..kMaxInfillCandidates, or the token of
// logit_bias that is outside the vocabulary. (The order and the formulas are in
// sampling/sampler.h.)
Status ValidateSampling(const SamplingParams& params, uint32_t vocab_size);

// When a beam search ends that has as many hypotheses as beams. kTrue: at once. kFalse: when the
// worst hypothesis scores at least as much as the best beam at its present length. kNever: as
// kFalse; with a positive length_penalty the beam's score is that at max_tokens.
enum class EarlyStopping : uint8_t { kFalse, kTrue, kNever };
inline constexpr uint32_t kMaxBeams = 16;

// Beam search as transformers 5 defines it (sampling/beam_search.h).
struct BeamParams {
  uint32_t beams = 5;        // 2..kMaxBeams, at most `parallel`; each counts as a sequence
  float length_penalty = 1;  // score = sum of log probabilities / length ** length_penalty
  EarlyStopping early_stopping = EarlyStopping::kFalse;
};

}  // namespace kvasir
