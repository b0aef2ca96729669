// The fields of a request that say how to generate: what chat and text completions share.
#pragma once

#include "kvasir/engine.h"
#include "server/chat_prompt.h"
#include "server/json_fields.h"
#include "server/openai_request.h"

namespace kvasir {

// Reads sampling, length, stop, n, stream and cache fields into the two. Errors stay in `fields`.
void ReadGenerationFields(JsonFields& fields, const ModelView& model, GenerateRequest* request,
                          AnswerSpec* spec);

// Fails on known fields that nothing here supports and that would change the answer, unless their
// value asks for nothing (null, false, empty, or the neutral number).
void RefuseUnsupported(JsonFields& fields);

}  // namespace kvasir
