// KvCache: forgetting a part of a prompt, in the pool and by name.
#include <algorithm>
#include <memory>
#include <ranges>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/fault.h"
#include "cache/cursor_store.h"
#include "cache/kv_cache.h"
#include "cache/record_names.h"
#include "cache/tier_probe.h"

namespace kvasir {

// Where the forgotten text lies: the blocks of `ids` before the one that holds token `last`, as far
// as they are here.
struct KvCache::ForgetPath {
  std::span<const TokenId> ids;
  uint32_t first, last, block_tokens;
  NodeId root;
  std::vector<NodeId> nodes;  // of whole blocks, from the first one on

  size_t end() const { return last / block_tokens; }
  bool is_whole() const { return nodes.size() == end(); }
  NodeId node(size_t blocks) const { return blocks == 0 ? root : nodes[blocks - 1]; }
  // The forgotten text after so many blocks, at most a block of it.
  std::span<const TokenId> text(size_t blocks) const {
    const size_t begin = blocks * block_tokens;
    return ids.subspan(begin, std::min<size_t>(block_tokens, last + 1 - begin));
  }
};

KvCache::Forgotten KvCache::Forget(NamespaceId ns, std::span<const TokenId> ids, uint32_t first,
                                   uint32_t last, const KeptPrompts& kept) {
  KV_CHECK(first <= last && last < ids.size());
  if (ns == kSharesNothing || FaultActive(Fault::kLazyForget)) return {};
  if (FaultActive(Fault::kEraseByFirst)) last = first;
  ForgetPath path{.ids = ids,
                  .first = first,
                  .last = last,
                  .block_tokens = layout().block_tokens(),
                  .root = Of(ns).root,
                  .nodes = {}};
  while (!path.is_whole()) {
    const auto child =
        index_->FindChild(path.node(path.nodes.size()), path.text(path.nodes.size()));
    if (!child) break;
    path.nodes.push_back(*child);
  }
  const uint64_t blocks = index_->num_blocks(), tokens = index_->num_tokens();
  Forgotten forgotten;
  if (path.is_whole()) ForgetBehind(path, kept, &forgotten);
  ForgetBack(path, kept, &forgotten);
  forgotten.erased_blocks = blocks - index_->num_blocks();
  forgotten.erased_tokens = tokens - index_->num_tokens();
  forgotten.point = owners_.Forget(ns);
  return forgotten;
}

// Whether a node lies behind the path and wholly in a kept prompt, by its number.
std::vector<bool> KvCache::NodesOf(const ForgetPath& path, const KeptPrompts& kept) const {
  std::vector<bool> stay(index_->max_nodes());
  std::vector<NodeId> way;  // of the prompt before, behind the path
  for (const KeptPrompts::Prompt& prompt : kept.prompts()) {
    const std::span<const TokenId> theirs = prompt.ids;
    const size_t shared_blocks = prompt.shared / path.block_tokens;
    const size_t on_way = shared_blocks - std::min(shared_blocks, path.end());
    // Where the one before ended on what both share, so does this one.
    const bool is_known = way.size() < on_way;
    way.resize(std::min(way.size(), on_way));
    if (prompt.on_path <= path.last || is_known) continue;
    NodeId node = way.empty() ? path.node(path.end()) : way.back();
    size_t at = (path.end() + way.size()) * path.block_tokens;
    for (; at + path.block_tokens <= theirs.size(); at += path.block_tokens) {
      const auto child = index_->FindChild(node, theirs.subspan(at, path.block_tokens));
      if (!child) break;
      node = *child;
      way.push_back(node);
      stay[static_cast<size_t>(node)] = true;
    }
    if (at == theirs.size()) continue;
    const auto rest = theirs.subspan(at, std::min<size_t>(path.block_tokens, theirs.size() - at));
    const auto best = index_->BestPartial(node, rest);
    if (best && best->num_equal == index_->tokens(best->node).size()) {
      stay[static_cast<size_t>(best->node)] = true;
    }
  }
  return stay;
}

// What begins with all of the forgotten text. REQUIRES: path.is_whole().
void KvCache::ForgetBehind(const ForgetPath& path, const KeptPrompts& kept, Forgotten* forgotten) {
  const NodeId before = path.node(path.end());
  const std::span<const TokenId> text = path.text(path.end());
  const std::vector<bool> stay = NodesOf(path, kept);
  cursors_->DropWith(before, text);
  std::vector<NodeId> leaving;
  index_->AddChildrenWith(before, text, &leaving);
  for (size_t i = 0; i < leaving.size(); ++i) index_->AddChildrenWith(leaving[i], {}, &leaving);
  const bool own_only = FaultActive(Fault::kEraseOwnOnly);
  const std::vector<TokenId> ids(path.ids.begin(), path.ids.end());
  const std::vector<bool> own =
      own_only ? NodesOf(path, KeptPrompts({ids}, ids)) : std::vector<bool>();
  for (const NodeId node : std::views::reverse(leaving)) {  // those below first
    if (index_->tokens(node).empty()) continue;             // bare, and left with one below it
    const auto number = static_cast<size_t>(node);
    if (own_only && (index_->has_children(node) || !own[number])) continue;
    if (!stay[number]) {
      residency_.Unlink(node, PrefixIndex::RemoveKind::kForgotten);
      continue;
    }
    cursors_->Drop(node);
    forgotten->kept_shared += BlocksOf(node);
  }
}

// What ends within the forgotten text, from its end to its beginning: what something is left
// behind stays.
void KvCache::ForgetBack(const ForgetPath& path, const KeptPrompts& kept, Forgotten* forgotten) {
  const size_t begin = path.first / path.block_tokens;
  for (size_t blocks = path.nodes.size() + 1; blocks-- > begin;) {
    const NodeId node = path.node(blocks);
    const auto is_pruned = [&] {
      return !PrefixIndex::is_root(node) && index_->tokens(node).empty();
    };
    if (is_pruned()) continue;
    const size_t before = blocks * path.block_tokens;
    const size_t least = path.first + 1 - std::min<size_t>(path.first + 1, before);
    if (blocks == path.nodes.size()) {  // a tail, which no whole block goes on with
      const auto tail = index_->BestPartial(node, path.text(blocks));
      const size_t size = tail ? index_->tokens(tail->node).size() : 0;
      if (tail && tail->num_equal == size && size >= least && before + size <= path.last) {
        if (before + size <= kept.on_path()) {
          forgotten->kept_shared += BlocksOf(tail->node);
        } else {
          residency_.Unlink(tail->node, PrefixIndex::RemoveKind::kForgotten);
        }
      }
    }
    if (is_pruned()) continue;
    cursors_->DropWithin(node, path.text(blocks), least);
    if (blocks == begin) break;  // the block that ends here is before the text
    if (before <= kept.on_path()) {
      forgotten->kept_shared += BlocksOf(node);
    } else if (!index_->has_children(node) && !index_->is_held(node)) {
      residency_.Unlink(node, PrefixIndex::RemoveKind::kForgotten);
    }
  }
}

uint64_t KvCache::BlocksOf(NodeId node) const {
  uint64_t blocks = 0;
  for (uint32_t group = 0; group < layout().num_groups(); ++group) {
    blocks += index_->block(node, group).has_value();
  }
  return blocks;
}

ForgetFacts KvCache::FactsToForget(std::string_view owner, const Identity& identity,
                                   std::optional<std::string_view> salt,
                                   std::span<const TokenId> ids, uint32_t first, uint32_t last,
                                   std::shared_ptr<const KeptPrompts> kept) const {
  KV_CHECK(first <= last && last < ids.size());
  if (FaultActive(Fault::kEraseByFirst)) last = first;
  const Namespace named = Namespaces::Named(owner, identity, salt);
  const BlockKey root = RootKeyOf(options_.secret, owner, named.salt, named.identity);
  return ForgetFactsOf(layout(), named.owner, root, ids, first, last, std::move(kept));
}

}  // namespace kvasir
