// Languages: what a translation model translates from and into.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "text/tokenizer.h"

namespace kvasir {

struct Language {
  std::string name;  // as the model spells it: "en" (M2M-100), "eng_Latn" (NLLB)
  // ISO 639-1's code, else 639-3's: "en", "ast". With the script where another language comes first
  // with this code: "zh-Hant".
  std::string code;
  TokenId id = 0;  // of the token that stands for it
};

// Where a source's language stands. NLLB's first models were trained with kBehind, which
// transformers calls its legacy behaviour.
enum class LanguagePlace : uint8_t { kInFront, kBehind };

// Immutable; thread-safe.
class Languages {
 public:
  // Finds the languages that the tokenizer has tokens for; none if the model does not translate.
  static Languages Of(const Tokenizer& tokenizer);

  bool empty() const { return all_.empty(); }
  std::span<const Language> all() const { return all_; }  // by id

  // Finds a language by name or by ISO 639's code of two or three letters, in any case, with or
  // without a script after it (`zh-Hant`, `zh_Hant`). Prefers names to codes, and the first
  // language of several. kInvalidArgument names the nearest and all of them. O(languages).
  Result<Language> Find(std::string_view code) const;

 private:
  const Language* FindByCode(std::string_view code) const;
  std::vector<Language> all_;
};

// Encodes a source: the text's pieces, by tokenizer.sources(), in their frame. No text becomes a
// special token or a language. Errors as Tokenizer::Encode; kExhausted: more than max_tokens.
Result<std::vector<TokenId>> EncodeSource(const Tokenizer& tokenizer, std::string_view text,
                                          const SourceFrame& frame, size_t max_tokens);
// Returns the frame of a language: it, the pieces and </s>, or (kBehind) the pieces, </s> and it.
// REQUIRES: the tokenizer has an EOS.
SourceFrame FrameOf(const Tokenizer& tokenizer, TokenId language, LanguagePlace place);

// Returns where the language stands by the text of a tokenizer_config.json ("" if the model has no
// such file): kBehind where legacy_behaviour is true. kCorruption as ParseJsonObject.
Result<LanguagePlace> LanguagePlaceOf(std::string_view tokenizer_config_json);

}  // namespace kvasir
