#include "schedule/leaders.h"

#include <algorithm>

namespace kvasir {

bool Leaders::Follow(Request& request, uint32_t num_resident) const {
  if (options_.cache_mode != CacheMode::kPrefix || !request.shares()) return false;
  const std::span<const TokenId> prompt = request.Exact(request.spec.prompt);
  const bool is_long = options_.IsLong(request.prompt_tokens());
  Request* leader = nullptr;
  uint32_t most = num_resident / block_tokens_ * block_tokens_;
  for (const auto& other : requests_.running) {
    if (other->answer.prompt_done || other->done() || !request.SharesCacheWith(*other)) continue;
    if (request.spec.source != other->spec.source) continue;  // nothing in common
    if (!other->answer.first_live()->kv.has_source() &&
        other->answer.first_live()->kv.publishes()) {
      request.wait.leader = other->id;
      request.wait.leader_tokens = 0;
      return Follows(request);
    }
    if (!other->answer.first_live()->kv.publishes() ||
        other->answer.first_live()->long_rope != is_long)
      continue;
    const auto same =
        std::ranges::mismatch(prompt, other->Exact(other->spec.prompt)).in1 - prompt.begin();
    const auto whole = static_cast<uint32_t>(same) / block_tokens_ * block_tokens_;
    if (whole <= most) continue;
    most = whole;
    leader = other.get();
    request.wait.leader_tokens = static_cast<uint32_t>(same);
  }
  if (leader == nullptr) return false;
  request.wait.leader = leader->id;
  leader->answer.first_live()->kv.AddResumePoint(request.wait.leader_tokens);
  return Follows(request);
}

bool Leaders::Follows(const Request& request) const {
  if (request.wait.leader == RequestId{}) return false;
  for (const auto& other : requests_.running) {
    if (other->id != request.wait.leader) continue;
    if (other->answer.prompt_done || other->done() || !other->answer.first_live()->kv.publishes())
      return false;
    if (!other->answer.first_live()->kv.has_source()) return true;
    if (request.wait.leader_tokens == request.prompt_tokens() &&
        request.wait.leader_tokens == other->prompt_tokens()) {
      return true;
    }
    return other->answer.first_live()->kv.num_committed() <
           request.wait.leader_tokens / block_tokens_ * block_tokens_;
  }
  return false;  // it ended or was preempted
}

}  // namespace kvasir
