// KvCache: forgetting a part of a prompt, in the pool and by name.
#include <algorithm>
#include <ranges>
#include <utility>
#include <vector>

#include "base/begins_with.h"
#include "base/check.h"
#include "base/fault.h"
#include "cache/cursor_store.h"
#include "cache/kv_cache.h"
#include "cache/tier_probe.h"

namespace kvasir {

KvCache::Forgotten KvCache::Forget(NamespaceId ns, std::span<const TokenId> ids, uint32_t first,
                                   std::span<const std::span<const TokenId>> kept) {
  KV_CHECK(first < ids.size());
  if (ns == kSharesNothing || FaultActive(Fault::kLazyForget)) return {};
  const size_t block_tokens = layout().block_tokens();
  // The last whole block of `tokens`, before token `end`, and how many of its blocks are here.
  const auto walk = [&](std::span<const TokenId> tokens, size_t end, auto&& visit) {
    NodeId node = Of(ns).root;
    size_t at = 0;
    for (; at + block_tokens <= end; at += block_tokens) {
      const auto child = index_->FindChild(node, tokens.subspan(at, block_tokens));
      if (!child) break;
      node = *child;
      visit(node);
    }
    return std::pair(node, at);
  };
  std::vector<NodeId> stay;
  for (const std::span<const TokenId> theirs : kept) {
    if (!BeginsWith(theirs, ids.first(first + 1))) continue;
    const auto [node, at] = walk(theirs, theirs.size(), [&](NodeId n) { stay.push_back(n); });
    if (at == theirs.size()) continue;
    const auto rest = theirs.subspan(at, std::min(block_tokens, theirs.size() - at));
    const auto best = index_->BestPartial(node, rest);
    if (best && best->num_equal == index_->tokens(best->node).size()) stay.push_back(best->node);
  }
  std::ranges::sort(stay);
  Forgotten forgotten;
  const size_t begin = first / block_tokens * block_tokens;
  const auto [before, reached] = walk(ids, begin, [](NodeId) {});
  if (reached == begin) {
    const uint64_t blocks = index_->num_blocks(), tokens = index_->num_tokens();
    const auto text = ids.subspan(begin, first - begin + 1);
    cursors_->DropWith(before, text);
    std::vector<NodeId> leaving = index_->ChildrenWith(before, text);
    for (size_t i = 0; i < leaving.size(); ++i) {
      const std::vector<NodeId> below = index_->ChildrenWith(leaving[i], {});
      leaving.insert(leaving.end(), below.begin(), below.end());
    }
    for (const NodeId node : std::views::reverse(leaving)) {  // those below first
      if (index_->tokens(node).empty()) continue;             // bare, and left with one below it
      if (!std::ranges::binary_search(stay, node)) {
        Unlink(node, PrefixIndex::RemoveKind::kForgotten);
        continue;
      }
      cursors_->Drop(node);
      for (uint32_t group = 0; group < layout().num_groups(); ++group) {
        forgotten.kept_shared += index_->block(node, group).has_value();
      }
    }
    forgotten.erased_blocks = blocks - index_->num_blocks();
    forgotten.erased_tokens = tokens - index_->num_tokens();
  }
  forgotten.point = ForgetUnlinked(ns);
  return forgotten;
}

ForgetFacts KvCache::FactsToForget(std::string_view owner, const Identity& identity,
                                   std::optional<std::string_view> salt,
                                   std::span<const TokenId> ids, uint32_t first,
                                   std::span<const std::span<const TokenId>> kept) const {
  KV_CHECK(first < ids.size());
  const Namespace named = Named(owner, identity, salt);
  const size_t block_tokens = layout().block_tokens();
  const size_t begin = first / block_tokens * block_tokens;
  ForgetFacts facts{.owner = named.owner,
                    .parent = RootKeyOf(options_.secret, owner, named.salt, named.identity),
                    .is_first = begin == 0,
                    .tokens = {},
                    .has_chains = layout().num_full_groups() > 0,
                    .kept = {}};
  const HmacKey hmac(facts.parent);
  for (size_t at = 0; at < begin; at += block_tokens) {
    facts.parent = ChildKey(hmac, facts.parent, ids.subspan(at, block_tokens));
  }
  const auto tokens = ids.subspan(begin, first - begin + 1);
  facts.tokens.assign(tokens.begin(), tokens.end());
  for (const std::span<const TokenId> theirs : kept) {
    if (!BeginsWith(theirs, ids.first(first + 1))) continue;
    BlockKey key = facts.parent;
    for (size_t at = begin; at + block_tokens <= theirs.size(); at += block_tokens) {
      key = ChildKey(hmac, key, theirs.subspan(at, block_tokens));
      facts.kept.push_back(key);
    }
  }
  return facts;
}

}  // namespace kvasir
