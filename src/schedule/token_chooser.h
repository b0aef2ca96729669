// TokenChooser: which token comes next in an answer, from a row of logits.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "grammar/matcher.h"
#include "model/runner.h"
#include "sampling/sampler.h"
#include "schedule/held_rows.h"
#include "schedule/request.h"

namespace kvasir {

// Draws the next tokens of a batch of choices on the runner's threads: by the requests' sampling
// parameters, and only tokens that their formats, min_tokens and no_repeat_ngram_size allow. A draw
// depends on its request, choice, position and logits alone, never on the batch. Allocates nothing
// after construction, except for a format, logprobs and infill. Engine thread only.
class TokenChooser {
 public:
  // The draw of the next token of a choice.
  struct Draw {
    Request* request;
    Sequence* sequence;
    const float* hidden;             // [hidden_size], of the row
    std::span<const float> logits;   // [vocab]
    std::optional<TokenId> id;       // absent: no token could be drawn
    bool is_stuck = false;           // since the format has none; else a logit is not finite
    bool hits_limit = false;         // and a limit of the format alone forbids some
    bool is_drafted = false;         // only its id is of use
    bool waits = false;              // it is not known yet which tokens the format has
    WalkSteps steps = WalkSteps(0);  // to find that out
    GeneratedToken token;            // with its logprobs, if they are asked for
  };

  // `parallel`: draws of a batch, and choices that wait for their formats, at most. `end_tokens`
  // ascend and, like the runner, must outlive this.
  TokenChooser(Runner& runner, uint32_t parallel, std::span<const TokenId> end_tokens);
  // Return the exact bytes that the constructor will allocate, and those that it did allocate.
  static uint64_t BytesFor(uint32_t vocab_size, uint32_t hidden_size, uint32_t threads,
                           uint32_t parallel);
  uint64_t bytes() const;

  // Begins a batch.
  void Clear();
  // Adds a choice, whose last token is computed, to the batch. `hidden` and `logits` belong to that
  // token and must outlive the batch.
  void Add(Request& request, Sequence& sequence, const float* hidden, std::span<const float> logits,
           bool is_drafted = false);
  // Draws the batch. `format_steps`: [tenants], for each draw of a format.
  void Run(std::span<const double> format_steps);
  std::span<Draw> draws() { return draws_; }

  // Sampler::Logprobs.
  void Logprobs(std::span<const float> logits, uint32_t num_top, GeneratedToken* token) {
    samplers_[0].Logprobs(logits, num_top, token);
  }
  // Returns whether an answer ends with the token.
  bool EndsAnswer(const GenerateRequest& spec, TokenId id) const;
  // Zeroes what earlier batches left in memory.
  void Zero();

 private:
  void RunDraw(Draw& draw, uint32_t sampler);
  void Choose(Draw& draw, uint32_t sampler);
  void ChooseOfFormat(Draw& draw, uint32_t sampler);
  static bool ForbidsTokens(const Draw& draw);
  void ForbidTokens(const Draw& draw, std::span<uint64_t> legal) const;
  std::optional<TokenId> Sample(const Draw& draw, uint32_t sampler,
                                std::span<const uint64_t> legal);
  std::optional<InfillWords> InfillWordsOf(const Request& request,
                                           std::span<const uint64_t> legal) const;

  Runner& runner_;
  const std::span<const TokenId> end_tokens_;
  HeldRows held_rows_;                        // [parallel]
  std::vector<Sampler> samplers_;             // each used by one thread at a time
  std::vector<std::vector<uint64_t>> legal_;  // [samplers_][MaskWords(vocab)]: without a format
  std::vector<Draw> draws_;
  std::atomic<uint32_t> next_draw_{0};  // relaxed: any thread may run a draw
  size_t num_used_ = 0;                 // samplers that were used since Zero
};

}  // namespace kvasir
