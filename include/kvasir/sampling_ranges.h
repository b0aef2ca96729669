// The ranges of sampling parameters.
#pragma once

namespace kvasir {

// What a field of SamplingParams may be, ends included. Everything that reads one (flags, requests,
// generation_config.json) and ValidateSampling takes it from here.
struct SamplingRange {
  double least, most;
};

inline constexpr SamplingRange kTemperatureRange{0, 100};
inline constexpr SamplingRange kProbabilityRange{0, 1};  // top_p and min_p
inline constexpr SamplingRange kRepetitionPenaltyRange{0.01, 100};
inline constexpr SamplingRange kAnswerPenaltyRange{-2, 2};  // presence_penalty, frequency_penalty
inline constexpr SamplingRange kLogitBiasRange{-100, 100};
// A range of BeamParams: with more, scores of long answers are not floats.
inline constexpr SamplingRange kLengthPenaltyRange{-10, 10};
inline constexpr unsigned kMaxNgram = 1 << 20;         // no_repeat_ngram_size
inline constexpr unsigned kMaxInfillCandidates = 256;  // top_k before infill
inline constexpr unsigned kMaxTopLogprobs = 20;        // GenerateRequest::logprobs
inline constexpr float kForbidden =
    -1e30f;  // far below what models make, and finite: as a bias too

}  // namespace kvasir
