// The limits of requests to a scheduler that a test runs without an engine.
#pragma once

#include "cache/kv_cache.h"
#include "schedule/request_check.h"

namespace kvasir {

// Returns limits of one account that has the whole pool. The cache must outlive the limits.
inline RequestLimits LimitsFor(const KvCache& cache, uint32_t ctx_size, uint32_t vocab_size,
                               uint32_t parallel) {
  return {.ctx_size = ctx_size,
          .max_positions = ctx_size,
          .vocab_size = vocab_size,
          .parallel = parallel,
          .num_blocks = cache.plan().num_blocks,
          .pool_blocks = cache.plan().num_blocks,
          .layout = &cache.layout(),
          .step_tokens = cache.step_tokens()};
}

}  // namespace kvasir
