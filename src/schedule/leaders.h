// Leaders: running requests that compute what waiting ones need.
#pragma once

#include <cstdint>

#include "schedule/request_queues.h"
#include "schedule/scheduler_options.h"

namespace kvasir {

// A request that shares a block or more with what a running one is computing waits for that,
// instead of computing it too. A leader that ends or is preempted has no followers. Engine thread
// only.
class Leaders {
 public:
  // `block_tokens`: of the cache. Requests and options must outlive this.
  Leaders(const RequestQueues& requests, const SchedulerOptions& options, uint32_t block_tokens)
      : requests_(requests), options_(options), block_tokens_(block_tokens) {}

  // Looks for a running request that is computing a block or more of what this prompt begins with,
  // beyond the `num_resident` tokens that the cache has. Returns whether the request has to wait
  // for it. O(tokens of running prompts).
  bool Follow(Request& request, uint32_t num_resident) const;
  // Returns whether the request's leader still has to compute what it waits for: whole blocks, or
  // all of an equal prompt, for whose end the leader keeps a Cursor. O(running).
  bool Follows(const Request& request) const;

 private:
  const RequestQueues& requests_;
  const SchedulerOptions& options_;
  const uint32_t block_tokens_;
};

}  // namespace kvasir
