// Reservation and KvDemand: what a request's sequences ask for, and hold until they draw it.
#include "cache/reservation.h"

#include <algorithm>

#include "base/check.h"
#include "cache/kv_reserves.h"

namespace kvasir {

uint64_t KvDemand::blocks(const KvLayout& layout, uint32_t step_tokens) const {
  const bool drops = most_full_tokens != std::numeric_limits<uint32_t>::max();
  const uint64_t shared = shares_prompt && !drops ? prompt_tokens / layout.block_tokens() : 0;
  KV_CHECK(read_blocks <= shared);
  uint64_t sum = layout.num_full_groups() * (shared + beside_blocks - read_blocks);
  sum += layout.SourceBlocks(source_tokens);  // forks share it in any case
  for (const KvKind& kind : layout.own_kinds()) {
    const bool is_full = kind.reach.window == 0;
    const uint32_t most = is_full ? std::min(tokens, most_full_tokens) : tokens;
    sum += n * (layout.SequenceBlocks(kind, most, step_tokens) +
                (is_full && drops ? kind.num_groups : 0));
  }
  return sum - n * layout.num_full_groups() * shared;
}

uint64_t KvDemand::MaxTokens(const KvLayout& layout, uint32_t step_tokens,
                             uint64_t num_blocks) const {
  const auto fits = [&](uint64_t most) {
    KvDemand demand = *this;
    demand.tokens = static_cast<uint32_t>(most);
    return demand.blocks(layout, step_tokens) <= num_blocks;
  };
  if (!fits(prompt_tokens)) return 0;
  uint64_t low = prompt_tokens, high = (uint64_t{1} << 31) - 1;
  while (low < high) {
    const uint64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

Status Reservation::Grow(uint32_t tokens, uint32_t sequences) {
  KV_CHECK(state_ != nullptr);
  return state_->reserves->Grow(*state_, tokens, sequences);
}

void Reservation::Shrink(uint32_t num_blocks) {
  KV_CHECK(num_blocks <= blocks());
  if (state_) state_->reserves->TakeBack(*state_, num_blocks);
}

void Reservation::Lend() {
  if (!state_) return;
  KV_CHECK(state_->lent == 0);
  state_->lent = state_->blocks;
  state_->reserves->TakeBack(*state_, state_->lent);
}

void Reservation::EndLoan() {
  if (state_) state_->reserves->EndLoan(*state_);
}

void Reservation::Release() {
  if (!state_) return;
  state_->reserves->TakeBack(*state_, state_->blocks);
  state_->released = true;
  state_.reset();
}

}  // namespace kvasir
