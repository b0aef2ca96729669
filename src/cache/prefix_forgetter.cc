#include "cache/prefix_forgetter.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "base/check.h"
#include "base/fault.h"

namespace kvasir {

// Where the forgotten text lies: the blocks of `ids` before the one that holds token `last`, as far
// as they are here.
struct PrefixForgetter::Path {
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

ForgottenText PrefixForgetter::Forget(NamespaceId ns, std::span<const TokenId> ids, uint32_t first,
                                      uint32_t last, const KeptPrompts& kept) {
  KV_CHECK(first <= last && last < ids.size());
  if (ns == kSharesNothing || FaultActive(Fault::kLazyForget)) return {};
  if (FaultActive(Fault::kEraseByFirst)) last = first;
  Path path{.ids = ids,
            .first = first,
            .last = last,
            .block_tokens = parts_.layout.block_tokens(),
            .root = parts_.namespaces.Of(ns).root,
            .nodes = {}};
  while (!path.is_whole()) {
    const auto child =
        parts_.index.FindChild(path.node(path.nodes.size()), path.text(path.nodes.size()));
    if (!child) break;
    path.nodes.push_back(*child);
  }
  const uint64_t blocks = parts_.index.num_blocks(), tokens = parts_.index.num_tokens();
  ForgottenText forgotten;
  if (path.is_whole()) ForgetAfter(path, kept, &forgotten);
  ForgetBack(path, kept, &forgotten);
  forgotten.erased_blocks = blocks - parts_.index.num_blocks();
  forgotten.erased_tokens = tokens - parts_.index.num_tokens();
  forgotten.point = parts_.owners.Forget(ns);
  return forgotten;
}

// Returns for each node, by its number, whether it lies after the path and wholly in a kept prompt.
std::vector<bool> PrefixForgetter::NodesOf(const Path& path, const KeptPrompts& kept) const {
  std::vector<bool> stay(parts_.index.max_nodes());
  std::vector<NodeId> way;  // of the prompt before, after the path
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
      const auto child = parts_.index.FindChild(node, theirs.subspan(at, path.block_tokens));
      if (!child) break;
      node = *child;
      way.push_back(node);
      stay[static_cast<size_t>(node)] = true;
    }
    if (at == theirs.size()) continue;
    const auto rest = theirs.subspan(at, std::min<size_t>(path.block_tokens, theirs.size() - at));
    const auto best = parts_.index.BestPartial(node, rest);
    if (best && best->num_equal == parts_.index.tokens(best->node).size()) {
      stay[static_cast<size_t>(best->node)] = true;
    }
  }
  return stay;
}

// Forgets what begins with all of the forgotten text. REQUIRES: path.is_whole().
void PrefixForgetter::ForgetAfter(const Path& path, const KeptPrompts& kept,
                                  ForgottenText* forgotten) {
  const NodeId before = path.node(path.end());
  const std::span<const TokenId> text = path.text(path.end());
  const std::vector<bool> stay = NodesOf(path, kept);
  parts_.cursors.DropWith(before, text);
  std::vector<NodeId> leaving;
  parts_.index.AddChildrenWith(before, text, &leaving);
  for (size_t i = 0; i < leaving.size(); ++i)
    parts_.index.AddChildrenWith(leaving[i], {}, &leaving);
  const bool own_only = FaultActive(Fault::kEraseOwnOnly);
  const std::vector<TokenId> ids(path.ids.begin(), path.ids.end());
  const std::vector<bool> own =
      own_only ? NodesOf(path, KeptPrompts({ids}, ids)) : std::vector<bool>();
  for (const NodeId node : std::views::reverse(leaving)) {  // those below first
    if (parts_.index.tokens(node).empty()) continue;        // bare, and left with one below it
    const auto number = static_cast<size_t>(node);
    if (own_only && (parts_.index.has_children(node) || !own[number])) continue;
    if (!stay[number]) {
      parts_.residency.Unlink(node, PrefixIndex::RemoveKind::kForgotten);
      continue;
    }
    parts_.cursors.Drop(node);
    forgotten->kept_shared += BlocksOf(node);
  }
}

// Forgets what ends within the forgotten text, from its end to its beginning, except what has
// something left after it.
void PrefixForgetter::ForgetBack(const Path& path, const KeptPrompts& kept,
                                 ForgottenText* forgotten) {
  const size_t begin = path.first / path.block_tokens;
  for (size_t blocks = path.nodes.size() + 1; blocks-- > begin;) {
    const NodeId node = path.node(blocks);
    const auto is_pruned = [&] {
      return !PrefixIndex::is_root(node) && parts_.index.tokens(node).empty();
    };
    if (is_pruned()) continue;
    const size_t before = blocks * path.block_tokens;
    const size_t least = path.first + 1 - std::min<size_t>(path.first + 1, before);
    if (blocks == path.nodes.size()) {  // a tail, which no whole block goes on with
      const auto tail = parts_.index.BestPartial(node, path.text(blocks));
      const size_t size = tail ? parts_.index.tokens(tail->node).size() : 0;
      if (tail && tail->num_equal == size && size >= least && before + size <= path.last) {
        if (before + size <= kept.on_path()) {
          forgotten->kept_shared += BlocksOf(tail->node);
        } else {
          parts_.residency.Unlink(tail->node, PrefixIndex::RemoveKind::kForgotten);
        }
      }
    }
    if (is_pruned()) continue;
    parts_.cursors.DropWithin(node, path.text(blocks), least);
    if (blocks == begin) break;  // the block that ends here is before the text
    if (before <= kept.on_path()) {
      forgotten->kept_shared += BlocksOf(node);
    } else if (!parts_.index.has_children(node) && !parts_.index.is_held(node)) {
      parts_.residency.Unlink(node, PrefixIndex::RemoveKind::kForgotten);
    }
  }
}

uint64_t PrefixForgetter::BlocksOf(NodeId node) const {
  uint64_t blocks = 0;
  for (uint32_t group = 0; group < parts_.layout.num_groups(); ++group) {
    blocks += parts_.index.block(node, group).has_value();
  }
  return blocks;
}

uint64_t PrefixForgetter::Forget(NamespaceId ns) {
  Namespace& space = parts_.namespaces.Of(ns);
  ++space.epoch;
  parts_.cursors.Drop(space.root);
  parts_.index.Clear(space.root, [this](NodeId node) {
    parts_.cursors.Drop(node);
    for (const KvKind& kind : parts_.layout.kinds()) {
      if (!parts_.index.block(node, kind.first_group)) continue;
      parts_.residency.Detach(node, kind, PrefixIndex::RemoveKind::kForgotten);
    }
  });
  return parts_.owners.Forget(ns);
}

}  // namespace kvasir
