#include <algorithm>

#include "text/tokenizer.h"

namespace kvasir {

TextStream::TextStream(const Tokenizer& tokenizer, SpecialTokens special)
    : decoder_(tokenizer.StartDecoder(special)) {}

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const TokenId> shown)
    : decoder_(tokenizer.StartDecoder(SpecialTokens::kShow)), hides_(&tokenizer), shown_(shown) {}

std::string TextStream::Append(TokenId id) {
  std::string text;
  if (hides_ && hides_->IsSpecial(id) && std::ranges::find(shown_, id) == shown_.end()) return text;
  decoder_->Append(id, &text);
  return text;
}

std::string TextStream::Finish() {
  std::string text;
  decoder_->Finish(&text);
  return text;
}

}  // namespace kvasir
