// The memory of a request that waits or runs.
#pragma once

#include <cstdint>

#include "kvasir/generate_request.h"

namespace kvasir {

// Returns the bytes that a request has allocated, beside its own size. Closures and a compiled
// format, which other budgets count, are left out. A new field of GenerateRequest must be named
// in engine/request_bytes.cc before it compiles. O(texts).
uint64_t AllocatedBytes(const GenerateRequest& request);

}  // namespace kvasir
