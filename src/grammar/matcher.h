// Matcher: where a text stands in a grammar.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "grammar/grammar.h"
#include "grammar/grammar_step.h"
#include "grammar/stack_frame.h"

namespace kvasir {

class TokenMasks;

// The state is a set of places: nodes of the grammar, each with the rules that wait below it. A
// copy shares all of it and costs O(1). Thread-compatible.
class Matcher {
 public:
  using Places = PlaceSet<StackFrames>;

  explicit Matcher(std::shared_ptr<const Grammar> grammar);

  // Tells whether the grammar has a text that goes on so. If not, the matcher stays where it is.
  // Half a character is legal where some character that begins so is. O(bytes * places). TextWork
  // does the same in pieces.
  bool Advance(std::string_view bytes);
  // Tells whether what was read is a text of the grammar.
  bool Accepts() const { return places_->may_end(); }
  // Tells whether nothing may follow: only the end is legal.
  bool IsAtEnd() const { return places_->places().empty(); }
  // Tells whether the grammar has a byte that may come next, and which is not legal because it
  // leads to too many places or open rules. False also where the steps are over before that is
  // known.
  bool HitsLimit(WalkSteps steps) const;
  // Sets the bits of the tokens that may come next: those whose bytes Advance takes, and where
  // Accepts those that end an answer; clears the others. REQUIRES: `legal` has
  // MaskWords(num_tokens) words. O(places) at nodes that `masks` knows, and what leaves their
  // rules; O(vocabulary * places) at others. MaskWork does the same in pieces.
  void Mask(TokenMasks& masks, std::span<uint64_t> legal) const;

  Matcher AtStart() const { return Matcher(grammar_); }  // of the same grammar

  const Grammar& grammar() const { return *grammar_; }
  const Places& places() const { return *places_; }

 private:
  friend class TextWork;

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const Places> places_;
  StackFrames frames_;
};

// Whether a grammar goes on with a text, and where it then stands: Matcher::Advance in pieces.
class TextWork {
 public:
  TextWork(Matcher from, std::string_view bytes);  // which must outlive this

  // Goes on. False: the steps are over before the end.
  bool Run(WalkSteps& steps);
  // Returns the next one when it has run to the end. nullopt: the grammar has no text that goes on
  // so.
  std::optional<Matcher>& next() { return next_; }

 private:
  bool HasTooManyFrames(WalkSteps& steps);

  Matcher at_;
  std::string_view bytes_;  // that are not read yet; the first one is being read if is_reading_
  bool is_reading_ = false;
  std::optional<Matcher::Places> read_;  // to which the bytes before lead; at first: at_'s
  ByteStep<StackFrames> step_;
  std::optional<Matcher> next_;
};

}  // namespace kvasir
