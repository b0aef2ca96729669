#include "grammar/matcher.h"

#include <utility>

#include "grammar/token_masks.h"

namespace kvasir {

Matcher::Matcher(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  StackFrames frames;
  auto places = std::make_shared<Places>();
  places->Begin(*grammar_, frames, grammar_->start(), FrameRef());
  places_ = std::move(places);
}

bool Matcher::Advance(std::string_view bytes) {
  if (bytes.empty()) return true;
  TextWork work(*this, bytes);
  WalkSteps steps;
  work.Run(steps);
  if (!work.next()) return false;
  *this = std::move(*work.next());
  return true;
}

void Matcher::Mask(TokenMasks& masks, std::span<uint64_t> legal) const {
  MaskWork work(masks, *this, legal);
  WalkSteps steps;
  work.Run(steps);
}

TextWork::TextWork(Matcher from, std::string_view bytes) : at_(std::move(from)), bytes_(bytes) {
  if (bytes_.empty()) next_ = at_;
}

bool TextWork::Run(WalkSteps& steps) {
  StackFrames frames;
  const Grammar& grammar = *at_.grammar_;
  while (!bytes_.empty()) {
    if (!is_reading_) {
      const Matcher::Places& from = read_ ? *read_ : *at_.places_;
      step_.Begin(grammar, from, static_cast<uint8_t>(bytes_.front()), steps);
    }
    is_reading_ = true;
    if (!step_.Run(grammar, frames, steps)) return false;
    is_reading_ = false;
    bytes_.remove_prefix(1);
    if (step_.result().is_empty()) {
      bytes_ = {};
      return true;
    }
    if (!read_) read_.emplace();
    std::swap(*read_, step_.result());
    if (!bytes_.empty()) continue;
    at_.places_ = std::make_shared<const Matcher::Places>(std::move(*read_));
    next_ = std::move(at_);
  }
  return true;
}

}  // namespace kvasir
