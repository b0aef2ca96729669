// The fields of a request that say what may be drafted for its answers (docs/speculation.md).
#pragma once

#include "api/model_view.h"
#include "base/json_fields.h"
#include "kvasir/engine.h"

namespace kvasir {

// Reads `prediction` of OpenAI and `speculative.n_max` of llama.cpp's server, flat or in an object.
// Errors stay in `fields`: a prediction of another type than "content", or whose content is neither
// a text nor a list of parts of text. A prediction that is of no use, since nothing is drafted or
// no context has room for it, is listed as unread. Returns whether there is one. O(text).
bool ReadDraftFields(JsonFields& fields, const ModelView& model, GenerateRequest* request);

}  // namespace kvasir
