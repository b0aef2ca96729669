// The fields that chat and text completions share: how to generate.
#pragma once

#include "kvasir/engine.h"
#include "server/chat_prompt.h"
#include "server/json_fields.h"
#include "server/openai_request.h"

namespace kvasir {

// Reads sampling, length, stop, n, stream and cache fields into `request` and `spec`. Errors stay
// in `fields`.
void ReadGenerationFields(JsonFields& fields, const ModelView& model, GenerateRequest* request,
                          AnswerSpec* spec);

// Fails on known fields that are not supported and would change the answer, unless their value
// changes nothing (null, false, empty, or the neutral number).
void RefuseUnsupported(JsonFields& fields);

}  // namespace kvasir
