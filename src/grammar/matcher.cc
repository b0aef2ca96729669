#include "grammar/matcher.h"

#include <utility>

#include "grammar/token_masks.h"

namespace kvasir {

Matcher::Matcher(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  StackFrames frames;
  auto places = std::make_shared<Places>();
  places->Add(*grammar_, frames, grammar_->start(), FrameRef());
  places_ = std::move(places);
}

bool Matcher::Advance(std::string_view bytes) {
  if (bytes.empty()) return true;
  StackFrames frames;
  std::vector<Places::Place> open;
  auto next = std::make_shared<Places>(), last = std::make_shared<Places>();
  const Places* from = places_.get();
  for (const char byte : bytes) {
    if (!next->Step(*grammar_, frames, *from, static_cast<uint8_t>(byte), &open)) return false;
    std::swap(next, last);
    from = last.get();
  }
  places_ = std::move(last);
  return true;
}

void Matcher::Mask(TokenMasks& masks, std::span<uint64_t> legal) const {
  masks.Fill(*grammar_, *places_, legal);
}

}  // namespace kvasir
