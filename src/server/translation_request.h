// Converts bodies of POST /v1/translations to GenerateRequests.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "kvasir/engine.h"
#include "server/openai_request.h"
#include "text/languages.h"

namespace kvasir {

// What parsing needs of a model with an encoder.
struct TranslationModel {
  Languages languages;  // empty: the model reads no text, or has no languages
  LanguagePlace place = LanguagePlace::kInFront;
  TokenId decoder_start = 0;
};

// REQUIRES: the engine's model has an encoder. Errors as ReadTextFile's and LanguagePlaceOf's.
Result<TranslationModel> TranslationModelOf(const Engine& engine);

// A request for each text that is not empty; AnswerSpec::translation says which. Answers are greedy
// unless the body says a temperature. kInvalidArgument names the field, and of a source that is too
// long the numbers; kUnsupported: what there is not yet, such as beams.
Result<GenerationCall> ParseTranslationRequest(std::string_view body, const ModelView& model,
                                               const TranslationModel& translation);

}  // namespace kvasir
