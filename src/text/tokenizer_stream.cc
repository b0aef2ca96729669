#include "text/tokenizer.h"

namespace kvasir {

TextStream::TextStream(const Tokenizer& tokenizer, SpecialTokens special)
    : decoder_(tokenizer.StartDecoder(special)) {}

std::string TextStream::Append(TokenId id) {
  std::string text;
  decoder_->Append(id, &text);
  return text;
}

std::string TextStream::Finish() {
  std::string text;
  decoder_->Finish(&text);
  return text;
}

}  // namespace kvasir
