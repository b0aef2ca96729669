#include "policy/kept_last.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/fault.h"

namespace kvasir {

// Returns the most marks: they are few beside blocks. A sixteenth of them takes 0.1% of the
// smallest blocks.
uint32_t KeptLast::MostMarks(const EvictionLimits& limits) {
  return std::clamp(limits.num_blocks / 16, 16u, 4096u);
}

uint64_t KeptLast::BytesFor(const EvictionLimits& limits) {
  return limits.num_blocks * sizeof(uint16_t) + MostMarks(limits) * sizeof(Kept);
}

KeptLast::KeptLast(std::unique_ptr<EvictionPolicy> policy, const EvictionLimits& limits)
    : policy_(std::move(policy)), most_marks_(MostMarks(limits)), places_(limits.num_blocks) {
  marks_.reserve(most_marks_);
}

void KeptLast::Drop(BlockId id) {
  Kept& kept = Of(id);
  num_kept_ -= kept.is_evictable;
  kept = marks_.back();
  places_[static_cast<size_t>(kept.id)] = places_[static_cast<size_t>(id)];
  places_[static_cast<size_t>(id)] = 0;
  marks_.pop_back();
}

void KeptLast::End(BlockId id) {
  const Kept kept = Of(id);
  Drop(id);
  if (kept.is_evictable) policy_->OnEvictable(id, kept.facts);
}

void KeptLast::EndPast() {
  if (marks_.empty()) return;
  const uint64_t now = MonotonicNs();
  if (now < next_end_ns_) return;
  next_end_ns_ = ~uint64_t{0};
  for (size_t i = marks_.size(); i-- > 0;) {
    if (marks_[i].until_ns() <= now) {
      End(marks_[i].id);
    } else {
      next_end_ns_ = std::min(next_end_ns_, marks_[i].until_ns());
    }
  }
}

const KeptLast::Kept* KeptLast::UsedLongestAgo(std::optional<uint32_t> account) const {
  const Kept* oldest = nullptr;
  for (const Kept& kept : marks_) {
    if (account && kept.mark.account != *account) continue;
    if (oldest == nullptr || kept.used_ns < oldest->used_ns) oldest = &kept;
  }
  return oldest;
}

bool KeptLast::Mark(BlockId id, const BlockFacts& facts, BlockMark mark, uint64_t most_blocks) {
  if (FaultActive(Fault::kMarkNeverExpires)) mark.ttl_ns = ~uint64_t{0} / 2;
  EndPast();
  if (mark.num_blocks > most_blocks) return false;
  if (is_marked(id)) {
    mark.ttl_ns = std::max(mark.ttl_ns, Of(id).mark.ttl_ns);
    mark.account = Of(id).mark.account;  // who marked it first
    Drop(id);
  }
  uint64_t blocks = mark.num_blocks, own_marks = 0;
  for (const Kept& kept : marks_) {
    if (kept.mark.account != mark.account) continue;
    blocks += kept.mark.num_blocks;
    ++own_marks;
  }
  while (blocks > most_blocks) {
    const Kept& oldest = *UsedLongestAgo(mark.account);
    blocks -= oldest.mark.num_blocks;
    End(oldest.id);
  }
  if (marks_.size() == most_marks_) {  // who has half of the table ends no mark of others
    const bool has_half = own_marks >= most_marks_ / 2;
    End(UsedLongestAgo(has_half ? std::optional(mark.account) : std::nullopt)->id);
  }
  marks_.push_back({id, mark, facts, MonotonicNs(), /*is_evictable=*/false});
  places_[static_cast<size_t>(id)] = static_cast<uint16_t>(marks_.size());
  next_end_ns_ = std::min(next_end_ns_, marks_.back().until_ns());
  return true;
}

void KeptLast::OnEvictable(BlockId id, const BlockFacts& facts) {
  if (!is_marked(id)) return policy_->OnEvictable(id, facts);
  Kept& kept = Of(id);
  kept.facts = facts;
  kept.is_evictable = true;
  ++num_kept_;
}

void KeptLast::OnHeld(BlockId id) {
  if (!is_marked(id)) return policy_->OnHeld(id);
  Of(id).is_evictable = false;
  --num_kept_;
}

void KeptLast::OnEvicted(BlockId id) {
  if (is_marked(id)) End(id);
  policy_->OnEvicted(id);
}

void KeptLast::OnForgotten(BlockId id) {
  if (is_marked(id)) Drop(id);
  policy_->OnForgotten(id);
}

std::optional<BlockId> KeptLast::Victim(const EvictionScope& scope) {
  EndPast();
  if (const auto victim = policy_->Victim(scope)) return victim;
  const auto is_in = [](const auto& list, auto one) {
    return !list || std::ranges::count(*list, one) > 0;
  };
  const Kept* oldest = nullptr;
  for (const Kept& kept : marks_) {
    if (!kept.is_evictable || !is_in(scope.namespaces, kept.facts.ns) ||
        !is_in(scope.groups, kept.facts.group)) {
      continue;
    }
    if (oldest == nullptr || kept.used_ns < oldest->used_ns) oldest = &kept;
  }
  return oldest != nullptr ? std::optional(oldest->id) : std::nullopt;
}

bool KeptLast::is_evictable(BlockId id) const {
  return is_marked(id) ? Of(id).is_evictable : policy_->is_evictable(id);
}

uint64_t KeptLast::allocated_bytes() const {
  return policy_->allocated_bytes() + places_.capacity() * sizeof(places_[0]) +
         marks_.capacity() * sizeof(marks_[0]);
}

void KeptLast::CheckInvariants() const {
  policy_->CheckInvariants();
  uint32_t num_kept = 0;
  for (const Kept& kept : marks_) {
    KV_CHECK(is_marked(kept.id) && &Of(kept.id) == &kept && !policy_->is_evictable(kept.id));
    num_kept += kept.is_evictable;
  }
  KV_CHECK(num_kept == num_kept_);
  KV_CHECK(static_cast<size_t>(std::ranges::count(places_, 0)) == places_.size() - marks_.size());
}

}  // namespace kvasir
