// TimedRunner: a Runner without weights and KV, whose steps take the time of a formula. For
// simulations of schedules with millions of tokens.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "testing/fake_runner.h"

namespace kvasir {

// The token at position p is p modulo the vocabulary, whatever came before. So a request ends after
// L tokens of answer when its stop id is TokenAt(prompt + L - 1). REQUIRES: L <= vocab_size.
class TimedRunner final : public FakeRunner {
 public:
  // What a step computes: rows, and tokens that their queries see, summed over rows.
  using OnStep = std::function<void(uint64_t rows, double seen_tokens)>;

  TimedRunner(const Options& options, OnStep on_step)
      : FakeRunner(options), vocab_size_(options.vocab_size), on_step_(std::move(on_step)) {
    positions_.resize(options.max_rows);
  }

  TokenId TokenAt(uint64_t position) const { return static_cast<TokenId>(position % vocab_size_); }

  Status Step(std::span<const StepSequence> sequences, std::span<const TokenId> tokens) override {
    double seen = 0;
    for (const StepSequence& sequence : sequences) {
      seen += sequence.num_rows * (sequence.position + (sequence.num_rows + 1) / 2.0);
      for (uint32_t i = 0; i < sequence.num_rows; ++i) {
        positions_[sequence.first_row + i] = {static_cast<float>(sequence.position + i)};
      }
    }
    on_step_(tokens.size(), seen);
    return {};
  }
  std::span<const float> hidden(uint32_t row) const override { return positions_[row].hidden; }
  bool finite(uint32_t) const override { return true; }
  void Logits(std::span<const float* const> hidden, float* logits) override {
    for (size_t i = 0; i < hidden.size(); ++i) {
      float* row = logits + i * vocab_size_;
      std::fill_n(row, vocab_size_, 0.0f);
      row[TokenAt(static_cast<uint64_t>(hidden[i][0]) + 1)] = 1;
    }
  }

 private:
  struct Row {
    float hidden[kHidden];  // the position, then zeros; exact below 2^24
  };
  const uint32_t vocab_size_;
  const OnStep on_step_;
  std::vector<Row> positions_;
};

}  // namespace kvasir
