// RequestMatcher: what the cache has of a request's tokens.
#pragma once

#include <cstdint>
#include <span>

#include "cache/kv_cache.h"
#include "schedule/request.h"
#include "schedule/scheduler_options.h"
#include "schedule/step_figures.h"
#include "schedule/tenant_book.h"

namespace kvasir {

// Knows whose cache a request uses, with which salt, adapters and rotation, and how much of it.
// Engine thread only.
class RequestMatcher {
 public:
  // Keeps references: all must outlive it.
  RequestMatcher(const SchedulerOptions& options, KvCache& cache, TenantBook& tenants,
                 StepFigures& figures)
      : options_(options), cache_(cache), tenants_(tenants), figures_(figures) {}

  // Returns what the cache has of tokens that the request begins or goes on with, up to the first
  // one that it computes itself in any case; its account is that of their blocks from now on. Sets
  // what of `options` follows from the request. `is_long`: of RoPE longrope.
  MatchResult Match(Request& request, std::span<const TokenId> tokens, bool is_long,
                    MatchOptions options);
  // Returns the same of any text that is read for the request.
  MatchResult MatchText(Request& request, std::span<const TokenId> tokens, bool is_long,
                        MatchOptions options);

 private:
  const SchedulerOptions& options_;
  KvCache& cache_;
  TenantBook& tenants_;
  StepFigures& figures_;
};

}  // namespace kvasir
