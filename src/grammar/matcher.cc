#include "grammar/matcher.h"

#include <unordered_set>
#include <utility>

#include "grammar/token_masks.h"

namespace kvasir {

Matcher::Matcher(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  auto places = std::make_shared<Places>();
  places->Begin(*grammar_, frames_, grammar_->start(), FrameRef());
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

bool Matcher::HitsLimit(WalkSteps steps) const {
  const ByteSet first = places_->FirstBytes(*grammar_);
  for (int byte = 0; byte < 256; ++byte) {
    if (!Has(first, static_cast<uint8_t>(byte))) continue;
    const auto text = static_cast<char>(byte);
    TextWork work(*this, {&text, 1});
    if (!work.Run(steps)) return false;
    if (!work.next()) return true;
  }
  return false;
}

void Matcher::Mask(TokenMasks& masks, std::span<uint64_t> legal) const {
  MaskWork work(masks, *this, legal);
  WalkSteps steps;
  work.Run(steps);
}

TextWork::TextWork(Matcher from, std::string_view bytes) : at_(std::move(from)), bytes_(bytes) {
  if (bytes_.empty()) next_ = at_;
}

// Returns whether the places to which the last byte led have too many frames. Counts frames only
// after many were made.
bool TextWork::HasTooManyFrames(WalkSteps& steps) {
  if (at_.frames_.num_made <= kMaxMadeFrames) return false;
  std::unordered_set<const StackFrame*> seen;
  for (const auto& place : step_.result().places()) {
    for (const StackFrame* frame = place.frame.get();
         frame != nullptr && seen.size() <= kMaxFrames && seen.insert(frame).second;
         frame = frame->below().get()) {
    }
  }
  at_.frames_.num_made = static_cast<uint32_t>(seen.size());
  steps.Take(8 * seen.size());  // a few of them for each
  return seen.size() > kMaxFrames;
}

bool TextWork::Run(WalkSteps& steps) {
  const Grammar& grammar = *at_.grammar_;
  while (!bytes_.empty()) {
    if (!is_reading_) {
      const Matcher::Places& from = read_ ? *read_ : *at_.places_;
      step_.Begin(grammar, from, static_cast<uint8_t>(bytes_.front()), steps);
    }
    is_reading_ = true;
    if (!step_.Run(grammar, at_.frames_, steps)) return false;
    is_reading_ = false;
    bytes_.remove_prefix(1);
    if (step_.result().is_empty() || HasTooManyFrames(steps)) {
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
