#include "schedule/tier_looks.h"

#include <utility>
#include <vector>

#include "base/clock.h"
#include "schedule/load_pace.h"

namespace kvasir {

void TierLooks::Begin(Request& request) const {
  const GenerateRequest& spec = request.spec;
  if (!CanAsk() || options_.cache_mode != CacheMode::kPrefix || !request.shares() ||
      !spec.use_disk || spec.use_remote == RemoteUse::kNone || !spec.source.empty()) {
    return;
  }
  const bool is_long = options_.IsLong(request.prompt_tokens());
  const Identity identity = IdentityOf(options_, request.adapters.get(), is_long);
  std::vector<std::vector<TokenId>> parts;
  uint32_t head = 0;
  if (const std::optional<SpanPlan>& plan = request.spans.plan) {
    head = plan->head();
    for (const SpanPlan::Part& part : plan->parts()) {
      parts.push_back(plan->TextOf(part, spec.prompt));
    }
  }
  LookFor what = cache_.LookForRest(request.cache_owner(), identity, spec.cache_salt,
                                    request.Exact(spec.prompt), head, parts);
  const uint32_t own_groups = cache_.layout().num_own_groups();
  if (what.names.size() < size_t{2} * own_groups) return;
  const size_t tokens = what.names.size() / own_groups * cache_.layout().block_tokens();
  const double compute_ns = static_cast<double>(tokens) * figures_.RowNs();
  const auto most_ns = static_cast<uint64_t>(LoadPace::ToleranceNs(compute_ns));
  if (options_.tier->LookNs() > most_ns) return;
  const uint64_t now = MonotonicNs();
  LookState state{.answered_ns = std::make_shared<std::atomic<uint64_t>>(0),
                  .since_ns = now,
                  .until_ns = now + most_ns};
  // Release: what the answer changed in the tier is under the tier's lock in any case.
  if (!options_.tier->Look(std::move(what), [answered_ns = state.answered_ns] {
        answered_ns->store(MonotonicNs(), std::memory_order_release);
      })) {
    return;
  }
  request.wait.look = std::move(state);
}

bool TierLooks::Holds(const Request& request, uint64_t now_ns) {
  const LookState& look = request.wait.look;
  return look.answered_ns != nullptr && now_ns < look.until_ns &&
         look.answered_ns->load(std::memory_order_acquire) == 0;
}

}  // namespace kvasir
