// What fuzz targets do with any tokenizer: encode with and without special tokens, decode, stream.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace kvasir {

inline void Require(bool condition) {
  if (!condition) std::abort();
}

inline void RunTokenizer(const Tokenizer& tokenizer, std::string_view text) {
  EncodeOptions chat;
  chat.literal = {{text.size() / 3, text.size() / 2}};
  EncodeOptions plain;
  plain.parse_special = false;
  for (const auto& options : {EncodeOptions{}, chat, plain}) {
    auto ids = tokenizer.Encode(text, options);
    std::vector<TokenId> all = ids ? *ids : std::vector<TokenId>{};
    for (size_t i = 0; i < 64 && i < text.size(); ++i) {
      all.push_back(static_cast<uint8_t>(text[i]) * 5 - 8);
    }
    std::string streamed;
    TextStream stream(tokenizer, SpecialTokens::kShow);
    for (TokenId id : all) streamed += stream.Append(id);
    streamed += stream.Finish();
    Require(streamed == tokenizer.Decode(all, SpecialTokens::kShow));
  }
}

// Makes the tokenizer and runs it over its tokens' own texts and the end of `input`. What users
// wrote has no control token in it.
inline void RunVocabulary(const Vocabulary& vocabulary, std::string_view input) {
  const auto tokenizer = Tokenizer::Make(vocabulary);
  if (!tokenizer) return Require(!tokenizer.error().message.empty());
  std::string text;
  for (const VocabularyToken& token : vocabulary.tokens) {
    if (text.size() < 2048) text += token.text + (text.size() % 3 == 0 ? " " : "");
  }
  AppendLossyUtf8(input.substr(input.size() - std::min<size_t>(input.size(), 256)), &text);
  text.resize(FirstInvalidUtf8(text));
  RunTokenizer(**tokenizer, text);
  EncodeOptions users;
  users.add_special = false;
  users.literal = {{0, text.size()}};
  users.written = "<table>";
  const auto ids = (*tokenizer)->Encode(text, users);
  for (TokenId id : ids ? *ids : std::vector<TokenId>{}) {
    const TokenKind kind = vocabulary.tokens[static_cast<size_t>(id)].kind;
    Require(kind != TokenKind::kControl && kind != TokenKind::kUnused);
  }
}

}  // namespace kvasir
