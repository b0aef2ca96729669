#include "schedule/leaders.h"

#include <algorithm>

#include "base/fault.h"

namespace kvasir {

bool Leaders::Follow(Request& request, uint32_t num_resident) const {
  if (options_.cache_mode != CacheMode::kPrefix || !request.shares()) return false;
  const std::span<const TokenId> prompt = request.spec.prompt;
  const bool is_long = options_.IsLong(request.prompt_tokens());
  Request* leader = nullptr;
  uint32_t most = num_resident / block_tokens_ * block_tokens_;
  for (const auto& other : requests_.running) {
    if (other->prompt_done || other->done() || !request.SharesCacheWith(*other)) continue;
    if (request.spec.source != other->spec.source) continue;  // nothing in common
    if (!other->first_live()->kv.has_source() && other->first_live()->kv.publishes()) {
      request.leader = other->id;
      request.leader_tokens = 0;
      return Follows(request);
    }
    if (!other->first_live()->kv.publishes() || other->first_live()->long_rope != is_long) continue;
    const auto same = std::ranges::mismatch(prompt, other->spec.prompt).in1 - prompt.begin();
    const auto whole = static_cast<uint32_t>(same) / block_tokens_ * block_tokens_;
    if (whole <= most) continue;
    most = whole;
    leader = other.get();
    request.leader_tokens = static_cast<uint32_t>(same);
  }
  if (leader == nullptr) return false;
  request.leader = leader->id;
  leader->first_live()->kv.AddResumePoint(request.leader_tokens);
  return Follows(request);
}

bool Leaders::Follows(const Request& request) const {
  if (request.leader == RequestId{}) return false;
  for (const auto& other : requests_.running) {
    if (other->id != request.leader) continue;
    if (other->prompt_done || other->done() || !other->first_live()->kv.publishes()) return false;
    if (!other->first_live()->kv.has_source()) return true;
    if (request.leader_tokens == request.prompt_tokens() &&
        request.leader_tokens == other->prompt_tokens()) {
      return true;
    }
    return other->first_live()->kv.num_committed() <
           request.leader_tokens / block_tokens_ * block_tokens_;
  }
  return FaultActive(Fault::kUnnoticedLeader);  // it ended or was preempted
}

}  // namespace kvasir
