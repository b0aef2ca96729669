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
  match.place_ = NodeHold(&residency_, ns, Of(ns).root);
  match.prompt_tokens_ = static_cast<uint32_t>(prompt.size());
  match.counts_ = options.counts;
  match.account_ = ns == kSharesNothing ? options.account : Of(ns).account;
  match.tables_.resize(layout().num_groups());
  match.shares_ = options.reuse && options_.reuse && ns != kSharesNothing;
  match.stores_ = match.shares_ && options.use_tier && Of(ns).stores;
  const PromptSource& source = options.source;
  KV_CHECK(source.tokens == 0 || (!source.ids.empty() && layout().num_cross_groups() > 0));
  KV_CHECK(prompt.empty() || prompt[0] != SourceKey::kMark);
  match.source_tokens_ = source.tokens;
  if (!match.shares_) {
    if (source.tokens > 0) match.source_miss = MissReason::kDisabled;
    if (!prompt.empty()) match.miss = Miss{.reason = MissReason::kDisabled};
    return match;
  }
  std::shared_ptr<const SourceKey> key;
  if (!source.ids.empty()) {
    key = std::make_shared<const SourceKey>(source, layout().block_tokens(), source_seed_,
                                            options_.source_hash_mask);
    match.source_nodes_ = key->num_nodes();
    const auto last = FindSource(Of(ns).root, *key);
    if (!last) {
      const MissReason reason = WhySourceIsMissing(ns, *key);
      if (source.tokens > 0) match.source_miss = reason;
      if (!prompt.empty()) match.miss = Miss{reason, 0, std::nullopt};
      match.source_ = std::move(key);
      return match;
    }
    match.place_.MoveTo(*last);
    if (source.tokens > 0) match.source_miss = PinSource(match);
  }
  if (prompt.empty()) return match;
  const NodeId begin = match.place_.node();
  std::vector<NodeId> path;
  const auto [num_covered, pool_is_full] = PinPrefix(prompt, match, path);
  const size_t whole_blocks = num_covered / layout().block_tokens();
  const NodeId node = whole_blocks == 0 ? begin : path[whole_blocks - 1];
  match.miss = pool_is_full ? Miss{MissReason::kPoolFull, num_covered, std::nullopt}
                            : Explain(ns, node, prompt, num_covered, options, key.get());
  const bool whole = num_covered == prompt.size();
  match.has_cursor_ = whole && options.use_cursor && UseCursor(prompt, node, match);
  uint32_t num_reused = whole && !match.has_cursor_ ? num_covered - 1 : num_covered;
  if (const Pinned resumed = PinWindows(path, num_reused, match); resumed.tokens < num_reused) {
    num_reused = resumed.tokens;
    match.has_cursor_ = false;
    match.miss =
        Miss{pool_is_full || resumed.pool_is_full ? MissReason::kPoolFull : MissReason::kWindow,
             num_reused, std::nullopt};
  }
  if (match.stores_ && key == nullptr && !pool_is_full && !match.has_cursor_) {
    num_reused = AddOffer(ns, prompt, std::span(path).first(whole_blocks), num_reused, match);
  }
  Settle(prompt, path, num_reused, match);
  return match;
}

// Looks for what the tier has beyond num_reused tokens. Returns what is to be reused of the pool:
// less, where an offer begins with the block of which only a part is here.
uint32_t KvCache::AddOffer(NamespaceId ns, std::span<const TokenId> prompt,
                           std::span<const NodeId> path, uint32_t num_reused, MatchResult& match) {
  TierOffer offer = FindOffer(*tier_, *index_, layout(), Of(ns).root, prompt, path, num_reused);
  if (offer.empty()) return num_reused;
  const uint32_t partial = num_reused % layout().block_tokens();
  if (partial > 0) {
    num_reused -= partial;
    if (layout().has_windows()) {
      for (uint32_t group = layout().num_full_groups(); group < layout().num_own_groups();
           ++group) {
        match.tables_[group].Clear();
      }
      num_reused = PinWindows(path, num_reused, match).tokens;
      offer = FindOffer(*tier_, *index_, layout(), Of(ns).root, prompt, path, num_reused);
      if (offer.empty()) return num_reused;
    }
  }
  match.num_offered_ = (offer.end_block - offer.first_block) * layout().block_tokens();
  match.offer_ = std::move(offer);
  match.miss.reset();
  return num_reused;
}

// An idle block must not be pinned when all free and idle blocks are reserved: the pin would take a
// reserved one. (The request could not start anyway, because no block is left for it to reserve.)
bool KvCache::MayPin(NodeId node, AccountId account) const {
  const uint32_t num_full = layout().num_full_groups();
  return num_full == 0 || pool_->pin_count(*index_->block(node, 0)) > 0 ||
         accounts_.available(account) >= num_full;
}

// Pins the `full` blocks of the whole blocks and then of the best partial one, whose nodes are
// `path`.
KvCache::Pinned KvCache::PinPrefix(std::span<const TokenId> prompt, MatchResult& match,
                                   std::vector<NodeId>& path) const {
  const size_t block_tokens = layout().block_tokens();
  const auto pin = [&](NodeId node) {
    for (uint32_t group = 0; group < layout().num_full_groups(); ++group) {
      match.tables_[group].Append(pool_->Pin(*index_->block(node, group)));
    }
    path.push_back(node);
  };
  uint32_t covered = 0;
  NodeId node = match.place_.node();
  while (covered + block_tokens <= prompt.size()) {
    const auto child = index_->FindChild(node, prompt.subspan(covered, block_tokens));
    if (!child) break;
    if (!MayPin(*child, match.account_)) return {covered, true};
    node = *child;
    pin(node);
    covered += static_cast<uint32_t>(block_tokens);
  }
  if (covered == prompt.size()) return {covered};
  const auto rest = prompt.subspan(covered, std::min(block_tokens, prompt.size() - covered));
  const auto best = index_->BestPartial(node, rest);
  if (!best || best->num_equal == 0) return {covered};
  if (!MayPin(best->node, match.account_)) return {covered, true};
  pin(best->node);
  return {covered + best->num_equal};
}

// Looks for the longest beginning of the path, of at most num_tokens tokens, before whose end all
// windows are resident. Pins these windows and returns the beginning's tokens.
// O(blocks * window kinds).
KvCache::Pinned KvCache::PinWindows(std::span<const NodeId> path, uint32_t num_tokens,
                                    MatchResult& match) const {
  if (!layout().has_windows()) return {num_tokens};
  const uint32_t block_tokens = layout().block_tokens();
  const std::span<const KvKind> kinds = layout().own_kinds();
  // [block][kind]: where the run of resident blocks begins that ends with this one.
  std::vector<uint32_t> run_begin(path.size() * kinds.size());
  for (uint32_t b = 0; b < path.size(); ++b) {
    for (size_t k = 0; k < kinds.size(); ++k) {
      uint32_t& begin = run_begin[b * kinds.size() + k];
      const bool goes_on = b > 0 && index_->block(path[b - 1], kinds[k].first_group);
      begin = goes_on ? run_begin[(b - 1) * kinds.size() + k] : b;
      if (!index_->block(path[b], kinds[k].first_group)) begin = b + 1;
    }
  }
  const auto window_block = [&](uint32_t tokens, const KvKind& kind) {
    return static_cast<uint32_t>(WindowBegin(tokens, kind.reach.window) / block_tokens);
  };
  const auto resumes_at = [&](uint32_t tokens) {
    const auto last = static_cast<uint32_t>(CeilDiv(tokens, block_tokens)) - 1;
    for (size_t k = 0; k < kinds.size(); ++k) {
      const uint32_t needed = window_block(tokens, kinds[k]);
      if (needed <= last && run_begin[last * kinds.size() + k] > needed) return false;
    }
    return true;
  };
  while (num_tokens > 0 && !resumes_at(num_tokens)) {
    num_tokens = (num_tokens - 1) / block_tokens * block_tokens;
  }
  if (num_tokens == 0) return {0};
  const auto end = static_cast<uint32_t>(CeilDiv(num_tokens, block_tokens));
  uint64_t pins = 0;
  for (const KvKind& kind : kinds) {
    if (kind.reach.window > 0)
      pins += uint64_t{end - window_block(num_tokens, kind)} * kind.num_groups;
  }
  if (pins > accounts_.available(match.account_)) return {0, true};
  for (const KvKind& kind : kinds) {
    if (kind.reach.window == 0) continue;
    const uint32_t begin = window_block(num_tokens, kind);
    for (uint32_t group = kind.first_group; group < kind.first_group + kind.num_groups; ++group) {
      match.tables_[group].Skip(std::min(begin, end));
      for (uint32_t b = begin; b < end; ++b) {
        match.tables_[group].Append(pool_->Pin(*index_->block(path[b], group)));
      }
    }
  }
  return {num_tokens};
}

// Copies the Cursor at the prompt's end; false when there is none. `node`: of the prompt's last
// whole block. REQUIRES: the pinned blocks cover the prompt.
bool KvCache::UseCursor(std::span<const TokenId> prompt, NodeId node, MatchResult& match) {
  const auto tail =
      prompt.subspan(prompt.size() / layout().block_tokens() * layout().block_tokens());
  const auto hidden = cursors_->Find(node, tail);
  if (!hidden) return false;
  match.hidden_.assign(hidden->begin(), hidden->end());
  return true;
}

// Cuts the match to num_reused tokens: releases `full` blocks beyond them. The last block counts as
// partial if it holds more tokens than are used.
void KvCache::Settle(std::span<const TokenId> prompt, std::span<const NodeId> path,
                     uint32_t num_reused, MatchResult& match) {
  const uint32_t block_tokens = layout().block_tokens();
  const size_t blocks = CeilDiv(num_reused, block_tokens);
  for (uint32_t group = 0; group < layout().num_full_groups(); ++group) {
    while (match.tables_[group].size() > blocks) match.tables_[group].PopBack();
  }
  if (num_reused >= block_tokens) match.place_.MoveTo(path[num_reused / block_tokens - 1]);
  match.num_pool_ = num_reused;
  if (const uint32_t tail = num_reused % block_tokens; tail > 0) {
    if (index_->tokens(path[blocks - 1]).size() > tail) {
      match.num_pool_ -= tail;
      match.num_partial_ = tail;
    }
  }
  match.tokens_.assign(prompt.begin(), prompt.begin() + num_reused);
  if (!match.counts_) return;
  for (const NodeId node : path.first(blocks)) index_->CountHit(node);
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

// `node`: of the last whole block of the prompt that was found, or where its nodes begin.
std::optional<Miss> KvCache::Explain(NamespaceId ns, NodeId node, std::span<const TokenId> prompt,
                                     uint32_t num_covered, const MatchOptions& options,
                                     const SourceKey* source) const {
  if (num_covered == prompt.size() || (num_covered > 0 && num_covered + 1 == prompt.size())) {
    return std::nullopt;
  }
  const uint32_t block_tokens = layout().block_tokens();
  const uint32_t source_nodes = source == nullptr ? 0 : source->num_nodes();
  const uint32_t begin = (index_->depth(node) - source_nodes) * block_tokens;
  const auto rest = prompt.subspan(begin, std::min<size_t>(block_tokens, prompt.size() - begin));
  const auto miss = [&](MissReason reason) { return Miss{reason, num_covered, std::nullopt}; };
  if (index_->WasEvicted(node, rest, num_covered - begin)) {
    return miss(MissReason::kEvicted);
  }
  if (options.other_rope != kSharesNothing &&
      BeginningHeld(Of(options.other_rope).root, prompt) > num_covered) {
    return miss(MissReason::kRopeChanged);
  }
  if (begin == 0 && OtherIdentityHas(ns, rest, num_covered, source)) {
    return miss(MissReason::kIdentityChanged);
  }
  if (num_covered == 0) return miss(MissReason::kCold);
  const auto best = index_->BestPartial(node, rest);
  if (best && best->num_equal < index_->tokens(best->node).size()) {
    return miss(MissReason::kDiverged);
  }
  return std::nullopt;
}

// Whether a namespace of the same owner and another Identity holds a first block or tail that is a
// beginning of this prompt, longer than num_covered.
bool KvCache::OtherIdentityHas(NamespaceId ns, std::span<const TokenId> begin, uint32_t num_covered,
                               const SourceKey* source) const {
  for (size_t i = 1; i < namespaces_.size(); ++i) {
    const Namespace& space = Of(NamespaceId(i));
    if (NamespaceId(i) == ns || !space.HasOwnerOf(Of(ns))) continue;
    const NodeId root = space.root;
    const auto node = source == nullptr ? root : FindSource(root, *source);
    if (!node) continue;
    if (BeginningHeld(*node, begin) > num_covered) return true;
  }
  return false;
}

// How many tokens of the prompt the nodes after `node` hold: whole blocks, then a block or tail of
// which no token differs from the prompt's.
uint32_t KvCache::BeginningHeld(NodeId node, std::span<const TokenId> prompt) const {
  const size_t block_tokens = layout().block_tokens();
  uint32_t held = 0;
  while (held + block_tokens <= prompt.size()) {
    const auto child = index_->FindChild(node, prompt.subspan(held, block_tokens));
    if (!child) break;
    node = *child;
    held += static_cast<uint32_t>(block_tokens);
  }
  if (held == prompt.size()) return held;
  const auto rest = prompt.subspan(held, std::min(block_tokens, prompt.size() - held));
  const auto best = index_->BestPartial(node, rest);
  const bool whole = best && (best->num_equal == rest.size() ||
                              best->num_equal == index_->tokens(best->node).size());
  return whole ? held + best->num_equal : held;
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
  sequence.source_tokens_ = match.source_tokens_;
  sequence.source_nodes_ = match.source_nodes_;
  sequence.source_ = std::move(match.source_);
  sequence.has_source_ = !match.source_miss;
  const auto source_blocks =
      static_cast<uint32_t>(CeilDiv(match.source_tokens_, layout().block_tokens()));
  uint32_t group = 0;
  for (BlockTable& table : sequence.tables_) {
    for (size_t b = table.first(); b < table.size(); ++b) {
      const BlockId block = table.ref(b).id();
      uses_.CountHit(block);
      if (sequence.stores_ && sealer_ != nullptr) sealer_->Push(block);
    }
    const bool own = group++ < layout().num_own_groups();
    table.Reserve(own ? CeilDiv(most, layout().block_tokens()) : source_blocks);
  }
  sequence.reserved_ = reservation.state_;
  return sequence;
}

void KvCache::Count(const MatchResult& match) {
  counters_.queried_tokens += match.prompt_tokens_;
  counters_.hit_tokens_pool += match.num_pool_;
  counters_.hit_tokens_partial += match.num_partial_;
  counters_.cursor_hits += match.has_cursor_;
  if (!match.miss) return;
  CountMiss(match.miss->reason, match.prompt_tokens_ - match.num_reused());
}

std::span<const float> KvCache::CursorHidden(const MatchResult& match) const {
  KV_CHECK(match.has_cursor_);
  return match.hidden_;
}

}  // namespace kvasir
