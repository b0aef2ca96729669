// Reservations of KvCache: what a match and a demand ask for.
#include <algorithm>

#include "base/check.h"
#include "cache/kv_cache.h"

namespace kvasir {

Result<Reservation> KvCache::Reserve(MatchResult& match, const KvDemand& demand) {
  KV_CHECK(demand.prompt_tokens == match.prompt_tokens_ && demand.n > 0);
  KV_CHECK(demand.tokens >= demand.prompt_tokens);
  KV_CHECK(demand.source_tokens == match.source_tokens_);
  KV_CHECK(demand.shares_prompt || !match.shares_);
  const uint32_t block_tokens = layout().block_tokens();
  const uint32_t num_full = layout().num_full_groups();
  accounts_.ApplyGuarantees();
  const uint32_t available = accounts_.available(match.account_);
  const uint64_t wanted = Wanted(match, demand);
  const uint32_t partial = match.num_reused() % block_tokens;
  if (partial != 0 && match.place_.is_current() && wanted > available &&
      wanted <= available + uint64_t{num_full}) {
    // The partly used tokens are computed again, in the block that the copy would have taken.
    Shorten(match, match.num_reused() - partial);
    match.miss = Miss{MissReason::kPoolFull, match.num_reused(), std::nullopt};
  }
  return reserves_.Open(match.account_, demand, Wanted(match, demand));
}

// Blocks that the demand needs beyond those that the match pins.
uint64_t KvCache::Wanted(const MatchResult& match, const KvDemand& demand) const {
  uint64_t blocks = reserves_.BlocksOf(demand);
  // A tail that is used in part is copied before it is written.
  if (match.num_reused() % layout().block_tokens() != 0) blocks += layout().num_full_groups();
  for (const BlockTable& table : match.tables_) blocks -= table.num_held();
  return blocks;
}

bool KvCache::IsGuaranteed(const MatchResult& match, const KvDemand& demand) const {
  const KvAccounts::Account& account = accounts_.of(match.account_);
  return account.used() + Wanted(match, demand) <= account.quota.guaranteed;
}

// Cuts the match to num_tokens tokens, which fill whole blocks, or to none when it does not hold
// the window before their end.
void KvCache::Shorten(MatchResult& match, uint32_t num_tokens) const {
  for (const KvKind& kind : layout().own_kinds()) {
    const uint64_t needed = WindowBegin(num_tokens, kind.reach.window) / layout().block_tokens();
    if (match.tables_[kind.first_group].first() > needed) num_tokens = 0;
  }
  for (BlockTable& table : std::span(match.tables_).first(layout().num_own_groups())) {
    while (table.size() > num_tokens / layout().block_tokens()) table.PopBack();
  }
  NodeId node = match.place_.node();
  const uint32_t depth = match.source_nodes_ + num_tokens / layout().block_tokens();
  while (index_->depth(node) > depth) node = index_->parent(node);
  match.place_.MoveTo(node);
  match.tokens_.resize(num_tokens);
  match.num_pool_ = num_tokens;
  match.num_partial_ = 0;
  match.has_cursor_ = false;
}

}  // namespace kvasir
