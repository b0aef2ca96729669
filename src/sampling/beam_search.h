// Beam search over rows of logits, as transformers 5 defines it. It knows no model and no cache: it
// says which beams go on, and from which one each comes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvasir/sampling_params.h"
#include "simd/target.h"
#include "tensor/exp_sum.h"

namespace kvasir {

// Calls `forbid` for each token that would make the last `size` tokens come twice. 0: for none.
// O(tokens * size).
template <typename F>
void ForEachRepeat(std::span<const TokenId> tokens, uint32_t size, F&& forbid) {
  if (size == 0 || tokens.size() < size) return;
  const auto last = tokens.last(size - 1);
  for (size_t i = 0; i + size <= tokens.size(); ++i) {
    if (std::ranges::equal(tokens.subspan(i, size - 1), last)) forbid(tokens[i + size - 1]);
  }
}

struct BeamOptions {
  uint32_t beams = 5;
  uint32_t hypotheses = 1;   // the best of so many are wanted
  float length_penalty = 1;  // score = sum of log probabilities / length ** length_penalty
  EarlyStopping early_stopping = EarlyStopping::kFalse;
  // Limits of the tokens after the start token: the forced one counts, and the end token, which
  // must not come before there are min_tokens.
  uint32_t min_tokens = 0, max_tokens = 1;
  uint32_t no_repeat_ngram_size = 0;  // 0: no limit
  float repetition_penalty = 1;       // of log probabilities, for tokens that a beam has
  TokenId start = 0;                  // every beam's first token, which no length counts
  std::optional<TokenId> forced;      // the token after it, with log probability 0
  std::vector<TokenId> ends;
};

// What the search needs of a beam's logits. O(vocabulary) in vectors. Allocates nothing once it has
// room.
class LogitRow {
 public:
  // Reserves room for so many logits, and the memory that it takes.
  void Reserve(uint32_t num_logits);
  static uint64_t BytesFor(uint32_t num_logits);
  uint64_t bytes() const { return block_max_.capacity() * sizeof(float); }
  void Zero() { std::ranges::fill(block_max_, 0.0f); }
  // False: a logit is not finite. REQUIRES: logits outlive the row's use.
  bool Read(std::span<const float> logits, ExpSum exp_sum);

  bool finite() const { return finite_; }  // what Read said
  std::span<const float> logits() const { return logits_; }
  // Returns the log softmax of one: (x - max) - log(sum of e^(x - max)), in f32.
  float LogProbability(float x) const { return (x - max_) - log_sum_; }
  float block_max(size_t block) const { return block_max_[block]; }  // kLogitBlock logits each

 private:
  std::span<const float> logits_;
  std::vector<float> block_max_;
  float max_ = 0, log_sum_ = 0;
  bool finite_ = false;
};

// A search for one source. Beams with equal sums stand in the order of their parents, then of their
// tokens' ids. Allocates only in its constructor. One thread.
//
// Where too few continuations are allowed, transformers goes on with beams of -1e9 and tokens of
// probability 0; this search goes on with fewer beams, and ends without any.
class BeamSearch {
 public:
  struct Beam {
    uint32_t parent;  // among the beams of the step before
    TokenId token;
    float sum;  // of log probabilities
  };
  struct Hypothesis {
    std::span<const TokenId> tokens;  // with the start token, and the end token if it has one
    float score;
    bool ended;  // by an end token, not by max_tokens
  };

  // REQUIRES: 0 < beams, hypotheses <= beams, max_tokens > 0, repetition_penalty > 0.
  explicit BeamSearch(const BeamOptions& options);
  static uint64_t BytesFor(uint32_t beams, uint32_t max_tokens);  // about; that of tokens is exact

  // Takes a row for each beam at hand, in their order; at first for one beam, [start]. Where
  // NeedsRows is false, the rows are not read. Afterwards beams() are those that go on; none when
  // done(). REQUIRES: not done; rows.size() == the number of beams.
  void Advance(std::span<const LogitRow> rows);
  bool NeedsRows() const { return length_ > 0 || !options_.forced; }
  // Ends it with what it has: the beams at hand end as at max_tokens.
  void End();

  bool done() const { return done_; }
  uint32_t length() const { return length_; }  // tokens after the start token
  std::span<const Beam> beams() const { return beams_; }
  // [start, ...] of a beam at hand. Until the next Advance.
  std::span<const TokenId> tokens(uint32_t beam) const;
  // Returns the best first; at most options.hypotheses. Valid until the next Advance.
  std::vector<Hypothesis> best() const;
  uint32_t num_finished() const { return static_cast<uint32_t>(finished_.size()); }

 private:
  struct Candidate {
    float sum;
    uint32_t beam;
    TokenId id;
  };
  struct Finished {
    float score;
    uint32_t slot;  // of finished_tokens_
    uint32_t size;
    bool ended;
  };
  // A token whose log probability is not that of the logits.
  struct Changed {
    TokenId id;
    float log_probability;  // -inf: forbidden
  };

  static bool Better(const Candidate& a, const Candidate& b);
  void Offer(const Candidate& candidate);
  void CollectRow(uint32_t beam, const LogitRow& row);
  void FindChanged(uint32_t beam, const LogitRow& row);
  void Change(TokenId id, const LogitRow& row);
  bool IsEnd(TokenId id) const;
  float ScoreOf(float sum, uint32_t length) const;
  void Finish(std::span<const TokenId> tokens, std::optional<TokenId> last, float sum);
  bool CanImprove() const;

  TokenId* beam_tokens(uint32_t side, uint32_t beam) {
    return tokens_[side].data() + size_t{beam} * stride_;
  }

  const BeamOptions options_;
  const uint32_t stride_;    // tokens of a beam, at most
  const uint32_t num_kept_;  // candidates of a step
  uint32_t length_ = 0;      // tokens after the start token
  bool done_ = false;
  uint32_t side_ = 0;               // of tokens_: that of the beams at hand
  std::vector<TokenId> tokens_[2];  // [beam][stride_]
  std::vector<Beam> beams_;
  std::vector<Candidate> kept_;   // the best so far; the worst first while they are collected
  std::vector<Changed> changed_;  // by id
  std::vector<TokenId> finished_tokens_;  // [beams + 1][stride_]
  std::vector<Finished> finished_;        // best first; at most `beams`
};

}  // namespace kvasir
