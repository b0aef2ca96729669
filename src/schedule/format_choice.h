// FormatChoice: which token may come next in an answer's format.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "grammar/matcher.h"
#include "grammar/token_masks.h"
#include "kvasir/types.h"
#include "schedule/held_rows.h"

namespace kvasir {

// Answers two questions at one place of an answer: which tokens are legal, and whether the format
// really goes on with one of them. Before that it reads the tokens that led there from the place at
// which it was made: none, but after a preemption. An answer that takes more steps than are left is
// found in pieces: Run goes on with it, then the question is asked again. One thread at a time.
class FormatChoice {
 public:
  // `tokens` were read after `at`; they and `masks` must outlive it.
  FormatChoice(const Matcher& at, std::span<const TokenId> tokens, TokenMasks& masks,
               HeldRows::Held row)
      : at_(at), unread_(tokens), masks_(masks), row_(std::move(row)) {}

  // Returns where the answer stands before the next token; null: the steps are over before that is
  // known.
  const Matcher* At(WalkSteps& steps);

  // Returns whether the format goes on with the token's text; nullopt: the steps are over before
  // that is known.
  std::optional<bool> Leads(TokenId id, WalkSteps& steps);
  // Returns the legal tokens, which the caller may change; empty: the steps are over before they
  // are known.
  std::span<uint64_t> Legal(WalkSteps& steps);
  std::span<const uint64_t> legal() const { return row_->legal; }  // that Legal returned before
  // Goes on with the question that had no answer. False: the steps are over before the end.
  bool Run(WalkSteps& steps);
  bool waits() const { return waits_; }  // for Run
  // Returns where the answer stands after the token for which Leads last returned true.
  Matcher& next() { return *text_->next(); }
  HeldRow& row() { return *row_; }

  // Notes of the caller: the best of all tokens is not legal; legal tokens that lead nowhere.
  bool best_is_illegal = false;
  uint32_t num_tries = 0;

 private:
  Matcher at_;
  std::span<const TokenId> unread_;  // tokens between at_ and the place
  std::optional<TextWork> read_;     // of the first of them
  TokenMasks& masks_;
  HeldRows::Held row_;
  std::optional<TokenId> id_;
  std::optional<TextWork> text_;  // of id_
  std::optional<MaskWork> mask_;  // while it is not known
  bool knows_mask_ = false, waits_ = false;
};

}  // namespace kvasir
