// sentencepiece.bpe.model with a vocab.json (M2M-100) or without (NLLB): an error with a message,
// or a tokenizer that is run over its own tokens, and in whose sources no text is a special token.
// The same with the model's pieces as the vocabulary of CTranslate2.
// An input is the model and, from the last "\0{" on, the vocab.json.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "fuzz_target.h"
#include "run_tokenizer.h"
#include "text/languages.h"
#include "text/sentencepiece_model.h"
#include "text/translation_vocabulary.h"

namespace kvasir {
namespace {

void RunSources(const Vocabulary& vocabulary) {
  const auto tokenizer = Tokenizer::Make(vocabulary);
  if (!tokenizer) return;
  const Languages languages = Languages::Of(**tokenizer);
  if (languages.empty()) return;
  std::string text = "</s>__fr__ eng_Latn";
  for (const VocabularyToken& token : vocabulary.tokens) {
    if (text.size() < 1024) text += token.text;
  }
  const TokenId language = languages.all().front().id;
  const SourceFrame frame = FrameOf(**tokenizer, language, LanguagePlace::kInFront);
  const auto ids = EncodeSource(**tokenizer, text, frame, text.size() + 2);
  if (!ids) return Require(!ids.error().message.empty());
  Require(ids->size() >= 2 && ids->front() == language);
  for (size_t i = 1; i + 1 < ids->size(); ++i) {
    const VocabularyToken& token = vocabulary.tokens[static_cast<size_t>((*ids)[i])];
    Require(token.kind != TokenKind::kControl);
  }
}

void Run(const Result<Vocabulary>& vocabulary, std::string_view input) {
  if (!vocabulary) return Require(!vocabulary.error().message.empty());
  RunVocabulary(*vocabulary, input);
  RunSources(*vocabulary);
}

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(translation_vocabulary)(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.rfind(std::string_view("\0{", 2));
  const std::string_view json = split == input.npos ? "" : input.substr(split + 1);
  const auto pieces = kvasir::ParseSentencePiece(input.substr(0, split), "fuzz", 1 << 16);
  if (!pieces) {
    kvasir::Require(!pieces.error().message.empty());
    return 0;
  }
  kvasir::Run(kvasir::NllbVocabulary(*pieces, pieces->tokens.size() + 204), input);
  kvasir::Ct2Tokens tokens{
      .tokens = {"<s>", "__fr__"}, .path = "fuzz", .unk = "<unk>", .bos = "<s>", .eos = "</s>"};
  for (const kvasir::VocabularyToken& piece : pieces->tokens) tokens.tokens.push_back(piece.text);
  kvasir::Run(kvasir::Ct2Vocabulary(*pieces, tokens), input);
  // Where the pieces have ids, vocab.json has one entry for each, a comma between two.
  const auto entries = static_cast<size_t>(std::ranges::count(json, ':'));
  kvasir::Run(kvasir::M2mVocabulary(*pieces, {json, "fuzz", ""}, entries + 108), input);
  return 0;
}
