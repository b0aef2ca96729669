// What a model with an encoder translates, and what its decoder reads first. For the server and for
// commands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/engine.h"
#include "text/languages.h"

namespace kvasir {

struct TranslationModel {
  Languages languages;  // empty: the model reads no text, or has no languages, or `pair`
  std::optional<LanguagePair> pair;  // the only one that it translates
  LanguagePlace place = LanguagePlace::kInFront;
  TokenId decoder_start = 0;
  uint32_t parallel = 1;  // sequences that run at once

  bool reads_text() const { return pair || !languages.empty(); }
};

// REQUIRES: the engine's model has an encoder. Errors as ReadTextFile's and LanguagePlaceOf's.
Result<TranslationModel> TranslationModelOf(const Engine& engine);

// From which language into which one.
struct Direction {
  SourceFrame frame;            // of each text
  std::vector<TokenId> target;  // what the decoder reads after its start: a language, or nothing
};

// Returns what to translate from and to. A model for one pair needs no languages; those that are
// given must be the pair's. Errors name the field `source` or `target`. REQUIRES:
// model.reads_text(); the tokenizer is the model's.
Result<Direction> DirectionOf(const TranslationModel& model, const Tokenizer& tokenizer,
                              const std::optional<std::string>& source,
                              const std::optional<std::string>& target);

// Gives the request its prompt: [decoder_start, target...]. A target counts for users, as a token
// of max_tokens and min_tokens, and not for the engine, so both become fewer. kInvalidArgument
// (max_tokens): a beam search has no token left. REQUIRES: max_tokens >= target.size().
Status SetTarget(TokenId decoder_start, const std::vector<TokenId>& target,
                 GenerateRequest* request);

}  // namespace kvasir
