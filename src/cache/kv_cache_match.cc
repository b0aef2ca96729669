// KvCache: from a match to a sequence.
#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "cache/kv_cache.h"

namespace kvasir {

MatchResult KvCache::Match(NamespaceId ns, std::span<const TokenId> prompt,
                           const MatchOptions& options) {
  return matcher_.Match(ns, prompt, options);
}

Result<Reservation> KvCache::Reserve(MatchResult& match, const KvDemand& demand) {
  accounts_.ApplyGuarantees();
  return ReserveLent(match, demand);
}

Result<Reservation> KvCache::ReserveLent(MatchResult& match, const KvDemand& demand) {
  KV_CHECK(demand.prompt_tokens == match.prompt_tokens_ && demand.n > 0);
  KV_CHECK(demand.tokens >= demand.prompt_tokens);
  KV_CHECK(demand.source_tokens == match.source_tokens_);
  KV_CHECK(demand.shares_prompt || !match.shares_);
  const uint32_t num_full = layout().num_full_groups();
  const uint32_t available = accounts_.available(match.account_);
  const uint64_t wanted = Wanted(match, demand);
  if (wanted > available && wanted <= available + uint64_t{num_full}) DropTail(match);
  return reserves_.Reserve(match.account_, demand, Wanted(match, demand));
}

bool KvCache::DropTail(MatchResult& match) {
  const uint32_t partial = match.num_reused() % layout().block_tokens();
  if (partial == 0 || !match.place_.is_current()) return false;
  // The partly used tokens are computed again, in the block that the copy would have taken.
  matcher_.Shorten(match, match.num_reused() - partial);
  match.miss = Miss{MissReason::kPoolFull, match.num_reused(), std::nullopt};
  return true;
}

// Counts the blocks that the demand needs beyond those that the match pins.
uint64_t KvCache::Wanted(const MatchResult& match, const KvDemand& demand) const {
  uint64_t blocks = reserves_.BlocksOf(demand);
  // A tail that is used in part is copied before it is written.
  if (match.num_reused() % layout().block_tokens() != 0) blocks += layout().num_full_groups();
  // (More than is wanted: only where a fault matches what the sequence will drop.)
  for (const BlockTable& table : match.tables_)
    blocks -= std::min<uint64_t>(blocks, table.num_held());
  return blocks;
}

bool KvCache::IsGuaranteed(const MatchResult& match, const KvDemand& demand) const {
  const KvAccounts::Account& account = accounts_.of(match.account_);
  return account.used() + Wanted(match, demand) <= account.quota.guaranteed;
}

std::vector<uint32_t> KvCache::ResumePointsOf(uint32_t prompt_tokens,
                                              std::span<const uint32_t> message_ends) const {
  if (!layout().has_windows()) return {};
  std::vector<uint32_t> points(message_ends.begin(), message_ends.end());
  const uint32_t period = std::max(uint32_t{1024}, layout().widest_window());
  for (uint64_t at = period; at < prompt_tokens; at += period) {
    points.push_back(static_cast<uint32_t>(at));
  }
  points.push_back(prompt_tokens);
  std::ranges::sort(points);
  const auto same = std::ranges::unique(points);
  points.erase(same.begin(), same.end());
  return points;
}

KvSequence KvCache::Fetch(MatchResult match, uint32_t reserve_tokens,
                          const Reservation& reservation) {
  if (match.counts_) Count(match);
  KvSequence sequence;
  sequence.shares_ = match.shares_;
  sequence.stores_ = match.stores_;
  sequence.account_ = match.account_;
  sequence.num_committed_ = match.num_reused();
  sequence.tokens_ = std::move(match.tokens_);
  const uint32_t most = std::max(reserve_tokens, sequence.num_tokens());
  sequence.tokens_.reserve(most);
  sequence.tables_ = std::move(match.tables_);
  sequence.place_ = std::move(match.place_);
  sequence.source_ = {.tokens = match.source_tokens_,
                      .nodes = match.source_nodes_,
                      .is_whole = !match.source_miss,
                      .key = std::move(match.source_)};
  const auto source_blocks =
      static_cast<uint32_t>(CeilDiv(match.source_tokens_, layout().block_tokens()));
  uint32_t group = 0;
  for (BlockTable& table : sequence.tables_) {
    for (size_t b = table.first(); b < table.size(); ++b) {
      const BlockId block = table.ref(b).id();
      uses_.CountHit(block);
      policy_->Use(block);
      if (sequence.stores_ != 0 && sealer_ != nullptr) sealer_->Push(block, sequence.stores_);
    }
    const bool own = group++ < layout().num_own_groups();
    table.Reserve(own ? CeilDiv(most, layout().block_tokens()) : source_blocks);
  }
  sequence.reserved_ = reservation.state_;
  sequence.has_copy_ = sequence.num_committed_ % layout().block_tokens() != 0;  // Wanted
  return sequence;
}

void KvCache::Count(const MatchResult& match) {
  counters_.prompt_tokens += match.prompt_tokens_;
  counters_.reused_pool += match.num_pool_;
  counters_.reused_partial += match.num_partial_;
  counters_.cursor_hits += match.has_cursor_;
  if (!match.miss) return;
  CountMiss(match.miss->reason, match.prompt_tokens_ - match.num_reused());
}

std::span<const float> KvCache::CursorHidden(const MatchResult& match) const {
  KV_CHECK(match.has_cursor_);
  return match.hidden_;
}

}  // namespace kvasir
