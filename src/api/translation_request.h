// Converts bodies of POST /v1/translations and of LibreTranslate's POST /translate to
// GenerateRequests.
#pragma once

#include <string>
#include <string_view>

#include "api/openai_request.h"
#include "api/translation_model.h"
#include "kvasir/tenant.h"

namespace kvasir {

// Makes a request for each text, or each of its sentences, that is not empty; TranslationSpec says
// which. Answers are greedy unless the body says beams or a temperature. kInvalidArgument names the
// field, and of a source that is too long the numbers; kUnsupported: a format of the answer.
Result<GenerationCall> ParseTranslationRequest(std::string_view body, const ModelView& model,
                                               const TranslationModel& translation);

// Returns the same for LibreTranslate's fields, in JSON or as a form. Texts are split into
// sentences, and without other fields 4 beams search, as Argos Translate does under LibreTranslate,
// or as many as the caller's tenant may have at once. The error of a language to be detected, or of
// HTML, names the field.
Result<GenerationCall> ParseLibreRequest(std::string_view body, std::string_view content_type,
                                         const ModelView& model,
                                         const TranslationModel& translation,
                                         uint32_t max_running = TenantRules::kNoLimit);

// Returns the key that a body of LibreTranslate's clients has: their field `api_key`. Empty: it has
// none, or cannot be read.
std::string KeyInLibreBody(std::string_view body, std::string_view content_type);

}  // namespace kvasir
