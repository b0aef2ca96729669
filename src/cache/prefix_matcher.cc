#include "cache/prefix_matcher.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "cache/tier_offer.h"

namespace kvasir {

MatchResult PrefixMatcher::Match(NamespaceId ns, std::span<const TokenId> prompt,
                                 const MatchOptions& options) {
  MatchResult match;
  match.place_ = NodeHold(&parts_.residency, ns, parts_.namespaces.Of(ns).root);
  match.prompt_tokens_ = static_cast<uint32_t>(prompt.size());
  match.counts_ = options.counts;
  match.account_ = ns == kSharesNothing ? options.account : parts_.namespaces.Of(ns).account;
  match.tables_.resize(parts_.layout.num_groups());
  match.shares_ = options.reuse && parts_.reuse && ns != kSharesNothing;
  const bool has_tier = match.shares_ && options.use_tier && parts_.namespaces.Of(ns).stores;
  if (has_tier) match.stores_ = StoresFor(options.remote);
  const PromptSource& source = options.source;
  KV_CHECK(source.tokens == 0 || (!source.ids.empty() && parts_.layout.num_cross_groups() > 0));
  KV_CHECK(prompt.empty() || prompt[0] != SourceKey::kMark);
  match.source_tokens_ = source.tokens;
  if (!match.shares_) {
    if (source.tokens > 0) match.source_miss = MissReason::kDisabled;
    if (!prompt.empty()) match.miss = Miss{.reason = MissReason::kDisabled};
    return match;
  }
  std::shared_ptr<const SourceKey> key;
  if (!source.ids.empty()) {
    key = std::make_shared<const SourceKey>(source, parts_.layout.block_tokens(),
                                            parts_.source_seed, parts_.source_hash_mask);
    match.source_nodes_ = key->num_nodes();
    const auto last = FindSource(parts_.index, parts_.namespaces.Of(ns).root, *key);
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
  const bool is_cut = options.most_tokens < prompt.size();
  if (is_cut) prompt = prompt.first(options.most_tokens);
  if (prompt.empty()) return match;
  const NodeId begin = match.place_.node();
  std::vector<NodeId> path;
  const auto [num_covered, pool_is_full] = PinPrefix(prompt, match, path);
  const size_t whole_blocks = num_covered / parts_.layout.block_tokens();
  const NodeId node = whole_blocks == 0 ? begin : path[whole_blocks - 1];
  match.miss = pool_is_full ? Miss{MissReason::kPoolFull, num_covered, std::nullopt}
                            : Explain(ns, node, prompt, num_covered, options, key.get());
  const bool whole = num_covered == prompt.size() && !is_cut;
  match.has_cursor_ = whole && options.use_cursor && UseCursor(prompt, node, match);
  const bool leaves_last = whole && options.computes_last && !match.has_cursor_;
  uint32_t num_reused = leaves_last ? num_covered - 1 : num_covered;
  if (const Pinned resumed = PinWindows(path, num_reused, match); resumed.tokens < num_reused) {
    num_reused = resumed.tokens;
    match.has_cursor_ = false;
    match.miss =
        Miss{pool_is_full || resumed.pool_is_full ? MissReason::kPoolFull : MissReason::kWindow,
             num_reused, std::nullopt};
  }
  if (has_tier && key == nullptr && !pool_is_full && !match.has_cursor_) {
    num_reused = AddOffer(ns, prompt, std::span(path).first(whole_blocks), num_reused,
                          options.remote, match);
  }
  Settle(prompt, path, num_reused, match);
  return match;
}

// Returns which stores of the tier get what is computed.
uint8_t PrefixMatcher::StoresFor(RemoteUse remote) const {
  uint8_t stores = 0;
  for (uint32_t i = 0; i < parts_.tier->num_stores(); ++i) {
    const bool is_remote = parts_.tier->KindOfStore(i) == TierKind::kRemote;
    if (!is_remote || remote == RemoteUse::kReadWrite) stores |= static_cast<uint8_t>(1u << i);
  }
  return stores;
}

// Looks for what the tier has beyond num_reused tokens. Returns what is to be reused of the pool:
// less, where an offer begins with the block of which only a part is here.
uint32_t PrefixMatcher::AddOffer(NamespaceId ns, std::span<const TokenId> prompt,
                                 std::span<const NodeId> path, uint32_t num_reused,
                                 RemoteUse remote, MatchResult& match) {
  const bool has_remote = remote != RemoteUse::kNone;
  TierOffer offer = FindOffer({*parts_.tier, has_remote}, parts_.index, parts_.layout,
                              parts_.namespaces.Of(ns).root, prompt, path, num_reused);
  if (offer.empty()) return num_reused;
  const uint32_t partial = num_reused % parts_.layout.block_tokens();
  if (partial > 0) {
    num_reused -= partial;
    if (parts_.layout.has_windows()) {
      for (uint32_t group = parts_.layout.num_full_groups(); group < parts_.layout.num_own_groups();
           ++group) {
        match.tables_[group].Clear();
      }
      num_reused = PinWindows(path, num_reused, match).tokens;
      offer = FindOffer({*parts_.tier, has_remote}, parts_.index, parts_.layout,
                        parts_.namespaces.Of(ns).root, prompt, path, num_reused);
      if (offer.empty()) return num_reused;
    }
  }
  match.num_offered_ = (offer.end_block - offer.first_block) * parts_.layout.block_tokens();
  match.offer_ = std::move(offer);
  match.miss.reset();
  return num_reused;
}

// Tells whether an idle block may be pinned: not when all free and idle blocks are reserved, since
// the pin would take a reserved one. (The request could not start anyway, because no block is left
// for it to reserve.)
bool PrefixMatcher::MayPin(NodeId node, AccountId account) const {
  const uint32_t num_full = parts_.layout.num_full_groups();
  return num_full == 0 || parts_.pool.pin_count(*parts_.index.block(node, 0)) > 0 ||
         parts_.accounts.available(account) >= num_full;
}

// Pins the `full` blocks of the whole blocks and then of the best partial one, whose nodes are
// `path`.
PrefixMatcher::Pinned PrefixMatcher::PinPrefix(std::span<const TokenId> prompt, MatchResult& match,
                                               std::vector<NodeId>& path) const {
  const size_t block_tokens = parts_.layout.block_tokens();
  const auto pin = [&](NodeId node) {
    for (uint32_t group = 0; group < parts_.layout.num_full_groups(); ++group) {
      match.tables_[group].Append(parts_.pool.Pin(*parts_.index.block(node, group)));
    }
    path.push_back(node);
  };
  uint32_t covered = 0;
  NodeId node = match.place_.node();
  while (covered + block_tokens <= prompt.size()) {
    const auto child = parts_.index.FindChild(node, prompt.subspan(covered, block_tokens));
    if (!child) break;
    if (!MayPin(*child, match.account_)) return {covered, true};
    node = *child;
    pin(node);
    covered += static_cast<uint32_t>(block_tokens);
  }
  if (covered == prompt.size()) return {covered};
  const auto rest = prompt.subspan(covered, std::min(block_tokens, prompt.size() - covered));
  const auto best = parts_.index.BestPartial(node, rest);
  if (!best || best->num_equal == 0) return {covered};
  if (!MayPin(best->node, match.account_)) return {covered, true};
  pin(best->node);
  return {covered + best->num_equal};
}

// Looks for the longest beginning of the path, of at most num_tokens tokens, before whose end all
// windows are resident. Pins these windows and returns the beginning's tokens.
// O(blocks * window kinds).
PrefixMatcher::Pinned PrefixMatcher::PinWindows(std::span<const NodeId> path, uint32_t num_tokens,
                                                MatchResult& match) const {
  if (!parts_.layout.has_windows()) return {num_tokens};
  const uint32_t block_tokens = parts_.layout.block_tokens();
  const std::span<const KvKind> kinds = parts_.layout.own_kinds();
  // [block][kind]: where the run of resident blocks begins that ends with this one.
  std::vector<uint32_t> run_begin(path.size() * kinds.size());
  for (uint32_t b = 0; b < path.size(); ++b) {
    for (size_t k = 0; k < kinds.size(); ++k) {
      uint32_t& begin = run_begin[b * kinds.size() + k];
      const bool goes_on = b > 0 && parts_.index.block(path[b - 1], kinds[k].first_group);
      begin = goes_on ? run_begin[(b - 1) * kinds.size() + k] : b;
      if (!parts_.index.block(path[b], kinds[k].first_group)) begin = b + 1;
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
  if (pins > parts_.accounts.available(match.account_)) return {0, true};
  for (const KvKind& kind : kinds) {
    if (kind.reach.window == 0) continue;
    const uint32_t begin = window_block(num_tokens, kind);
    for (uint32_t group = kind.first_group; group < kind.first_group + kind.num_groups; ++group) {
      match.tables_[group].Skip(std::min(begin, end));
      for (uint32_t b = begin; b < end; ++b) {
        match.tables_[group].Append(parts_.pool.Pin(*parts_.index.block(path[b], group)));
      }
    }
  }
  return {num_tokens};
}

// Copies the Cursor at the prompt's end; false when there is none. `node`: of the prompt's last
// whole block. REQUIRES: the pinned blocks cover the prompt.
bool PrefixMatcher::UseCursor(std::span<const TokenId> prompt, NodeId node, MatchResult& match) {
  const auto tail =
      prompt.subspan(prompt.size() / parts_.layout.block_tokens() * parts_.layout.block_tokens());
  const auto hidden = parts_.cursors.Find(node, tail);
  if (!hidden) return false;
  match.hidden_.assign(hidden->begin(), hidden->end());
  return true;
}

// Cuts the match to num_reused tokens: releases `full` blocks beyond them. The last block counts as
// partial if it holds more tokens than are used.
void PrefixMatcher::Settle(std::span<const TokenId> prompt, std::span<const NodeId> path,
                           uint32_t num_reused, MatchResult& match) {
  const uint32_t block_tokens = parts_.layout.block_tokens();
  const size_t blocks = CeilDiv(num_reused, block_tokens);
  for (uint32_t group = 0; group < parts_.layout.num_full_groups(); ++group) {
    while (match.tables_[group].size() > blocks) match.tables_[group].PopBack();
  }
  if (num_reused >= block_tokens) match.place_.MoveTo(path[num_reused / block_tokens - 1]);
  match.num_pool_ = num_reused;
  if (const uint32_t tail = num_reused % block_tokens; tail > 0) {
    if (parts_.index.tokens(path[blocks - 1]).size() > tail) {
      match.num_pool_ -= tail;
      match.num_partial_ = tail;
    }
  }
  match.tokens_.assign(prompt.begin(), prompt.begin() + num_reused);
  if (!match.counts_) return;
  for (const NodeId node : path.first(blocks)) parts_.index.CountHit(node);
}

// `node`: of the last whole block of the prompt that was found, or where its nodes begin.
std::optional<Miss> PrefixMatcher::Explain(NamespaceId ns, NodeId node,
                                           std::span<const TokenId> prompt, uint32_t num_covered,
                                           const MatchOptions& options,
                                           const SourceKey* source) const {
  if (num_covered == prompt.size() || (num_covered > 0 && num_covered + 1 == prompt.size())) {
    return std::nullopt;
  }
  const uint32_t block_tokens = parts_.layout.block_tokens();
  const uint32_t source_nodes = source == nullptr ? 0 : source->num_nodes();
  const uint32_t begin = (parts_.index.depth(node) - source_nodes) * block_tokens;
  const auto rest = prompt.subspan(begin, std::min<size_t>(block_tokens, prompt.size() - begin));
  const auto miss = [&](MissReason reason) { return Miss{reason, num_covered, std::nullopt}; };
  if (parts_.index.WasEvicted(node, rest, num_covered - begin)) {
    return miss(MissReason::kEvicted);
  }
  if (options.other_rope != kSharesNothing &&
      BeginningHeld(parts_.namespaces.Of(options.other_rope).root, prompt) > num_covered) {
    return miss(MissReason::kRopeChanged);
  }
  if (begin == 0) {
    const auto reason = OtherIdentityHas(ns, rest, num_covered, source);
    if (reason) return miss(*reason);
  }
  if (num_covered == 0) return miss(MissReason::kCold);
  const auto best = parts_.index.BestPartial(node, rest);
  if (best && best->num_equal < parts_.index.tokens(best->node).size()) {
    return miss(MissReason::kDiverged);
  }
  return std::nullopt;
}

// Returns what differs where a namespace of the same owner with another Identity holds a first
// block or tail that is a beginning of this prompt, longer than num_covered: the adapter, or
// anything.
std::optional<MissReason> PrefixMatcher::OtherIdentityHas(NamespaceId ns,
                                                          std::span<const TokenId> begin,
                                                          uint32_t num_covered,
                                                          const SourceKey* source) const {
  const Namespace& own = parts_.namespaces.Of(ns);
  std::optional<MissReason> reason;
  for (size_t i = 1; i < parts_.namespaces.size(); ++i) {
    const Namespace& space = parts_.namespaces.Of(NamespaceId(i));
    if (NamespaceId(i) == ns || !space.HasOwnerOf(own)) continue;
    const NodeId root = space.root;
    const auto node = source == nullptr ? root : FindSource(parts_.index, root, *source);
    if (!node) continue;
    if (BeginningHeld(*node, begin) <= num_covered) continue;
    if (space.plain == own.plain) return MissReason::kAdapterChanged;
    reason = MissReason::kIdentityChanged;
  }
  return reason;
}

// Walks over whole blocks of the prompt below `node`; returns the last one and the blocks' tokens.
std::pair<NodeId, uint32_t> PrefixMatcher::Walk(NodeId node,
                                                std::span<const TokenId> prompt) const {
  const size_t block_tokens = parts_.layout.block_tokens();
  uint32_t tokens = 0;
  while (tokens + block_tokens <= prompt.size()) {
    const auto child = parts_.index.FindChild(node, prompt.subspan(tokens, block_tokens));
    if (!child) break;
    node = *child;
    tokens += static_cast<uint32_t>(block_tokens);
  }
  return {node, tokens};
}

uint32_t PrefixMatcher::WholeBlocksHeld(NodeId root, std::span<const TokenId> prompt) const {
  return Walk(root, prompt).second;
}

// Returns how many tokens of the prompt the nodes after `begin` hold: whole blocks, then a block or
// tail of which no token differs from the prompt's.
uint32_t PrefixMatcher::BeginningHeld(NodeId begin, std::span<const TokenId> prompt) const {
  const auto [node, held] = Walk(begin, prompt);
  if (held == prompt.size()) return held;
  const size_t left = std::min<size_t>(parts_.layout.block_tokens(), prompt.size() - held);
  const auto rest = prompt.subspan(held, left);
  const auto best = parts_.index.BestPartial(node, rest);
  const bool whole = best && (best->num_equal == rest.size() ||
                              best->num_equal == parts_.index.tokens(best->node).size());
  return whole ? held + best->num_equal : held;
}

MissReason PrefixMatcher::WhySourceIsMissing(NamespaceId ns, const SourceKey& key) const {
  if (parts_.index.WasEvicted(parts_.namespaces.Of(ns).root, key.node(0),
                              parts_.layout.block_tokens() - 1)) {
    return MissReason::kEvicted;
  }
  for (size_t i = 1; i < parts_.namespaces.size(); ++i) {
    const Namespace& space = parts_.namespaces.Of(NamespaceId(i));
    if (NamespaceId(i) == ns || !space.HasOwnerOf(parts_.namespaces.Of(ns))) continue;
    if (FindSource(parts_.index, space.root, key)) return MissReason::kIdentityChanged;
  }
  return MissReason::kCold;
}

// Pins all blocks of the source at whose last node the match stands, or none and says why.
std::optional<MissReason> PrefixMatcher::PinSource(MatchResult& match) const {
  const uint32_t first = parts_.layout.num_own_groups();
  const auto last = parts_.index.block(match.place_.node(), first);
  if (!last) return MissReason::kEvicted;
  const auto blocks =
      static_cast<uint32_t>(CeilDiv(match.source_tokens_, parts_.layout.block_tokens()));
  if (parts_.pool.pin_count(*last) == 0 && parts_.accounts.available(match.account_) <
                                               parts_.layout.SourceBlocks(match.source_tokens_)) {
    return MissReason::kPoolFull;
  }
  std::vector<NodeId> path(blocks);
  NodeId node = match.place_.node();
  for (uint32_t b = blocks; b-- > 0; node = parts_.index.parent(node)) path[b] = node;
  for (uint32_t group = first; group < parts_.layout.num_groups(); ++group) {
    match.tables_[group].Reserve(blocks);
    for (const NodeId each : path)
      match.tables_[group].Append(parts_.pool.Pin(*parts_.index.block(each, group)));
  }
  return std::nullopt;
}

// Cuts the match to num_tokens tokens, which fill whole blocks, or to none when it does not hold
// the window before their end.
void PrefixMatcher::Shorten(MatchResult& match, uint32_t num_tokens) const {
  for (const KvKind& kind : parts_.layout.own_kinds()) {
    const uint64_t needed =
        WindowBegin(num_tokens, kind.reach.window) / parts_.layout.block_tokens();
    if (match.tables_[kind.first_group].first() > needed) num_tokens = 0;
  }
  for (BlockTable& table : std::span(match.tables_).first(parts_.layout.num_own_groups())) {
    while (table.size() > num_tokens / parts_.layout.block_tokens()) table.PopBack();
  }
  NodeId node = match.place_.node();
  const uint32_t depth = match.source_nodes_ + num_tokens / parts_.layout.block_tokens();
  while (parts_.index.depth(node) > depth) node = parts_.index.parent(node);
  match.place_.MoveTo(node);
  match.tokens_.resize(num_tokens);
  match.num_pool_ = num_tokens;
  match.num_partial_ = 0;
  match.has_cursor_ = false;
}

}  // namespace kvasir
