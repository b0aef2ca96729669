// Matcher: where a text stands in a grammar.
#pragma once

#include <memory>
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
  explicit Matcher(std::shared_ptr<const Grammar> grammar);

  // Whether the grammar has a text that goes on so. If not, the matcher stays where it is. Half a
  // character is legal where some character that begins so is. O(bytes * places).
  bool Advance(std::string_view bytes);
  // Whether what was read is a text of the grammar.
  bool Accepts() const { return places_->may_end(); }
  // Whether nothing may follow: only the end is legal.
  bool IsAtEnd() const { return places_->places().empty(); }
  // Sets the bits of the tokens that may come next: those whose bytes Advance takes, and where
  // Accepts those that end an answer; clears the others. REQUIRES: `legal` has
  // MaskWords(num_tokens) words. O(places) at nodes that `masks` knows, and what leaves their
  // rules; O(vocabulary) at others.
  void Mask(TokenMasks& masks, std::span<uint64_t> legal) const;

  const Grammar& grammar() const { return *grammar_; }

 private:
  using Places = PlaceSet<StackFrames>;

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const Places> places_;
};

}  // namespace kvasir
