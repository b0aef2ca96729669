// The reading half of KvCache: Match, the reasons for misses, Fetch.
#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "cache/cursor_store.h"
#include "cache/kv_cache.h"

namespace kvasir {

MatchResult KvCache::Match(NamespaceId ns, std::span<const TokenId> prompt,
                           const MatchOptions& options) {
  MatchResult match;
  match.namespace_ = ns;
  match.epoch_ = Of(ns).epoch;
  match.node_ = Of(ns).root;
  match.prompt_tokens_ = static_cast<uint32_t>(prompt.size());
  match.shares_ = options.reuse && options_.reuse && ns != kSharesNothing;
  if (!match.shares_) {
    if (!prompt.empty()) match.miss = Miss{.reason = MissReason::kDisabled};
    return match;
  }
  if (prompt.empty()) return match;
  const uint32_t num_covered = PinPrefix(prompt, match);
  match.miss = Explain(match, prompt, num_covered);
  const bool whole = num_covered == prompt.size();
  match.has_cursor_ = whole && options.use_cursor && UseCursor(prompt, match);
  Settle(prompt, whole && !match.has_cursor_ ? num_covered - 1 : num_covered, match);
  return match;
}

// An idle block is not pinned when all that are left are reserved: its pin would break a promise,
// and the request that matches it could not start, since it finds no block to reserve.
bool KvCache::MayPin(NodeId node) const {
  return pool_->pin_count(index_->block(node)) > 0 || unreserved_blocks() > 0;
}

void KvCache::PinInto(NodeId node, MatchResult& match) {
  match.table_.Append(pool_->Pin(index_->block(node)));
}

// Pins the whole blocks and then the best partial block; returns how many tokens of the prompt they
// cover. node_ is the last whole block.
uint32_t KvCache::PinPrefix(std::span<const TokenId> prompt, MatchResult& match) {
  const size_t block_tokens = layout().block_tokens();
  uint32_t covered = 0;
  while (covered + block_tokens <= prompt.size()) {
    const auto child = index_->FindChild(match.node_, prompt.subspan(covered, block_tokens));
    if (!child) break;
    if (!MayPin(*child)) return covered;
    match.node_ = *child;
    PinInto(*child, match);
    covered += static_cast<uint32_t>(block_tokens);
  }
  if (covered == prompt.size()) return covered;
  const auto rest = prompt.subspan(covered, std::min(block_tokens, prompt.size() - covered));
  const auto best = index_->BestPartial(match.node_, rest);
  if (!best || best->num_equal == 0 || !MayPin(best->node)) return covered;
  PinInto(best->node, match);
  return covered + best->num_equal;
}

// The Cursor at the prompt's end, which the pinned blocks cover.
bool KvCache::UseCursor(std::span<const TokenId> prompt, MatchResult& match) {
  const auto tail =
      prompt.subspan(prompt.size() / layout().block_tokens() * layout().block_tokens());
  const auto hidden = cursors_->Find(match.node_, tail);
  if (!hidden) return false;
  match.hidden_.assign(hidden->begin(), hidden->end());
  return true;
}

// Makes the match one of num_reused tokens: blocks beyond them are released, and the last one
// counts as partial if it holds more tokens than are used.
void KvCache::Settle(std::span<const TokenId> prompt, uint32_t num_reused, MatchResult& match) {
  const uint32_t block_tokens = layout().block_tokens();
  if (match.table_.size() > CeilDiv(num_reused, block_tokens)) match.table_.PopBack();
  if (index_->depth(match.node_) > num_reused / block_tokens) {
    match.node_ = index_->parent(match.node_);
  }
  match.num_pool_ = num_reused;
  if (const uint32_t tail = num_reused % block_tokens; tail > 0) {
    const BlockId last = match.table_.ref(match.table_.size() - 1).id();
    if (index_->tokens(*index_->node_of(last)).size() > tail) {
      match.num_pool_ -= tail;
      match.num_partial_ = tail;
    }
  }
  match.tokens_.assign(prompt.begin(), prompt.begin() + num_reused);
}

std::optional<Miss> KvCache::Explain(const MatchResult& match, std::span<const TokenId> prompt,
                                     uint32_t num_covered) const {
  if (num_covered == prompt.size() || (num_covered > 0 && num_covered + 1 == prompt.size())) {
    return std::nullopt;
  }
  const uint32_t block_tokens = layout().block_tokens();
  const uint32_t begin = index_->depth(match.node_) * block_tokens;
  const auto rest = prompt.subspan(begin, std::min<size_t>(block_tokens, prompt.size() - begin));
  const auto miss = [&](MissReason reason) { return Miss{reason, num_covered, std::nullopt}; };
  if (index_->WasEvicted(match.node_, rest, num_covered - begin)) {
    return miss(MissReason::kEvicted);
  }
  if (begin == 0 && OtherIdentityHas(match.namespace_, rest, num_covered)) {
    return miss(MissReason::kIdentityChanged);
  }
  if (num_covered == 0) return miss(MissReason::kCold);
  const auto best = index_->BestPartial(match.node_, rest);
  if (best && best->num_equal < index_->tokens(best->node).size()) {
    return miss(MissReason::kDiverged);
  }
  return std::nullopt;
}

// Whether a namespace of the same tenant and another Identity holds a first block or tail that is a
// beginning of this prompt, longer than num_covered.
bool KvCache::OtherIdentityHas(NamespaceId ns, std::span<const TokenId> begin,
                               uint32_t num_covered) const {
  for (size_t i = 1; i < namespaces_.size(); ++i) {
    if (NamespaceId(i) == ns || namespaces_[i].tenant != Of(ns).tenant) continue;
    const auto best = index_->BestPartial(namespaces_[i].root, begin);
    if (best && best->num_equal > num_covered &&
        (best->num_equal == begin.size() || best->num_equal == index_->tokens(best->node).size())) {
      return true;
    }
  }
  return false;
}

KvSequence KvCache::Fetch(MatchResult match, uint32_t reserve_tokens,
                          const Reservation& reservation) {
  counters_.queried_tokens += match.prompt_tokens_;
  counters_.hit_tokens_pool += match.num_pool_;
  counters_.hit_tokens_partial += match.num_partial_;
  counters_.cursor_hits += match.has_cursor_;
  if (match.miss) ++counters_.misses[static_cast<size_t>(match.miss->reason)];

  KvSequence sequence;
  sequence.namespace_ = match.namespace_;
  sequence.epoch_ = match.epoch_;
  sequence.shares_ = match.shares_;
  sequence.node_ = match.node_;
  sequence.num_committed_ = match.num_reused();
  sequence.tokens_ = std::move(match.tokens_);
  sequence.table_ = std::move(match.table_);
  for (size_t b = 0; b < sequence.table_.size(); ++b) {
    ++uses_[static_cast<size_t>(sequence.table_.ref(b).id())].hits;
  }
  const uint32_t most = std::max(reserve_tokens, sequence.num_tokens());
  sequence.tokens_.reserve(most);
  sequence.table_.Reserve(CeilDiv(most, layout().block_tokens()));
  sequence.reserved_ = reservation.state_;
  return sequence;
}

std::span<const float> KvCache::CursorHidden(const MatchResult& match) const {
  KV_CHECK(match.has_cursor_);
  return match.hidden_;
}

}  // namespace kvasir
