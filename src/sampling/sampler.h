// Sampler: chooses the next token from a row of logits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvasir/engine_event.h"
#include "kvasir/sampling_params.h"
#include "sampling/infill_cut.h"
#include "sampling/logit_scan.h"
#include "sampling/weight_order.h"
#include "sampling/weighted_draw.h"

namespace kvasir {

// Steps, in this order, on a copy of the logits l:
//   logit_bias           l[i] += b                                        (OpenAI)
//   repetition_penalty   of prompt and answer: l = l > 0 ? l / r : l * r  (CTRL; as HF and vLLM)
//   presence_penalty     tokens of the answer: l -= p                     (OpenAI)
//   frequency_penalty    tokens of the answer: l -= f * count             (OpenAI)
//   penalty_last_n       all three: of the last n of prompt and answer    (llama.cpp)
//   legal tokens         of others l = -1e30: their weight is 0, so that nothing below sees them
//   temperature 0        the largest l, of equals the lowest id; nothing below is read
//   temperature T        w[i] = exp((l[i] - max) / T)
//   top_k                the k largest; the lowest ids among equals
//   top_p                of those, the fewest largest whose sum is at least p of their whole, and
//                        the equals of the last of them; 0: as temperature 0
//   min_p                of those, w >= min_p * the largest w
//   infill               of those, what CutForInfill keeps by the same weights
//   temperature last     top_p, min_p and infill see T = 1, then w[i] = exp((l[i] - max) / T).
//   Where T
//                        is 1 or they cut nothing, it is as if temperature came first
//   draw                 with top_k, or temperature last, the first, from the largest down, at
//   which
//                        the running sum exceeds u * sum; else with WeightedDraw, until it draws a
//                        token that is kept; after a token that top_p cuts, only heavier ones are
//                        drawn
// Computed in double with simd/math.h's exp: the same logits, parameters and u give the same token
// everywhere.
// Sums of all w are added from the lowest id to the highest, those of sorted w from the largest
// down. Faster ways replace these steps where they give the same token: the largest logits of
// blocks show where the best tokens are, and bounds of the sums decide whether top_p keeps a token,
// unless it is too close to the edge. sampler_definition_test compares both.
//
// Has scratch memory for one vocabulary and allocates nothing after construction. One thread at a
// time.
class Sampler {
 public:
  explicit Sampler(uint32_t vocab_size);
  static uint64_t BytesFor(uint32_t vocab_size);  // exactly what the constructor allocates
  uint64_t bytes() const;
  void Zero();  // what earlier calls left

  // `tokens`: prompt and answer, of which the first `prompt_tokens` are the prompt. u in [0, 1).
  // nullopt when a logit is not finite. `legal`: bit id % 64 of word id / 64; empty: all tokens
  // are. O(vocab + tokens with penalties). REQUIRES: ValidateSampling(params), some token is legal;
  // `words` where params.infill.
  std::optional<TokenId> Sample(std::span<const float> logits, const SamplingParams& params,
                                std::span<const TokenId> tokens, uint32_t prompt_tokens, double u,
                                std::span<const uint64_t> legal = {},
                                const InfillWords* words = nullptr);

  // Fills token->logprob and the `num_top` best alternatives, from the log softmax of the raw
  // logits (before bias, penalties and temperature). Among equals the lower id is first.
  void Logprobs(std::span<const float> logits, uint32_t num_top, GeneratedToken* token);

  // Fills in logprobs of the distribution that Sample draws from, with its arguments. Alternatives
  // that it never draws are left out; a token that it never draws has minus infinity. O(vocab log
  // vocab).
  void SampledLogprobs(std::span<const float> logits, const SamplingParams& params,
                       std::span<const TokenId> tokens, uint32_t prompt_tokens, uint32_t num_top,
                       GeneratedToken* token, std::span<const uint64_t> legal = {},
                       const InfillWords* words = nullptr);

 private:
  void Adjust(const SamplingParams& params, std::span<const TokenId> tokens,
              uint32_t prompt_tokens);
  TokenId Largest(std::span<const float> logits, float max) const;
  // Draws without top_k.
  TokenId DrawOfAll(std::span<const float> logits, const SamplingParams& params, float max,
                    double u);
  // Returns whether top_p keeps a token, by bounds of the sums of the definition; nullopt when the
  // bounds cannot decide. The first call fills `total`.
  std::optional<bool> IsKept(std::span<const float> logits, const SamplingParams& params, float max,
                             const Candidate& candidate, std::optional<Interval>* total) const;
  // Returns the smallest weight that top_p keeps.
  double LeastKept(std::span<const float> logits, const SamplingParams& params, float max);
  // Draws, with top_k, from the `limit` largest.
  TokenId DrawOfLargest(std::span<const float> logits, const SamplingParams& params, float max,
                        size_t limit, double u);
  // Draws with temperature last or infill.
  TokenId DrawAfterCuts(std::span<const float> logits, const SamplingParams& params, float max,
                        double u, const InfillWords* words);
  // Fills best_ with the largest weights, sorted, and returns how many of them are certain: at
  // least `look`, up to all; or 0 when that would take too long. Tokens of weight 0 may be missing:
  // they are never drawn and change no sum. REQUIRES: look > 0.
  size_t SortBest(std::span<const float> logits, size_t look, float max, float temperature);
  // best_[0, num): the largest logits in order. Returns num.
  size_t SortLargest(std::span<const float> logits, size_t num);

  std::vector<float> logits_;     // [vocab]
  std::vector<uint32_t> counts_;  // [vocab]; all zero between calls
  WeightOrder order_;
  WeightedDraw draw_;
  std::vector<float> block_max_, block_order_;
  std::vector<TokenId> ids_;
  std::vector<Candidate> best_;
};

}  // namespace kvasir
