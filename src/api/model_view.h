// What parsing a request needs from an engine's model.
#pragma once

#include "api/chat_prompt.h"
#include "kvasir/engine.h"

namespace kvasir {

// `own` replaces the model's template; nullptr: the model's. Both must outlive it. Its limits are
// those of a caller without HTTP.
ModelView ViewOf(const Engine& engine, const ChatTemplate* own);

}  // namespace kvasir
