// GET /v1/cache/prefixes: what the cache holds of the caller's prompts.
#pragma once

#include "kvasir/session.h"
#include "server/call.h"
#include "server/outcome.h"

namespace kvasir {

// Lists the prefixes of the caller, or of its share group, as trees. Their text is shown where one
// of the caller's own sessions has read it.
Outcome ListPrefixes(const Call& call, SessionStore& sessions);

}  // namespace kvasir
