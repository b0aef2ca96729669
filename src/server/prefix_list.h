// GET /v1/cache/prefixes: what the cache holds of the caller's prompts.
#pragma once

#include <cstdint>

#include "kvasir/session.h"
#include "server/call.h"
#include "server/outcome.h"

namespace kvasir {

inline constexpr uint64_t kMostPrefixRuns = 512;

// Lists the prefixes of the caller, or of its share group, as trees, at most `limit` of the query
// of its runs. kInvalidArgument: `limit` is not between 1 and kMostPrefixRuns. Their text is shown
// where one of the caller's own sessions has read it.
Outcome ListPrefixes(const Call& call, SessionStore& sessions);

}  // namespace kvasir
