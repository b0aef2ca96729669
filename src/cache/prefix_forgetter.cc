#include "cache/prefix_forgetter.h"

#include <algorithm>
#include <compare>
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
  // Returns the forgotten text after so many blocks, at most a block of it.
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
  parts_.residency.NoteEraseBegins(path.root);
  if (path.is_whole()) ForgetAfter(path, kept, &forgotten);
  ForgetBack(path, kept, &forgotten);
  forgotten.erased_blocks = blocks - parts_.index.num_blocks();
  forgotten.erased_tokens = tokens - parts_.index.num_tokens();
  parts_.residency.NoteEraseEnds(path.root);
  forgotten.point = parts_.owners.Forget(ns);
  return forgotten;
}

// Returns the nodes that begin with all of the forgotten text, parents first. O(nodes), and
// O(log prompts) for each that has several prompts. REQUIRES: path.is_whole().
std::vector<PrefixForgetter::Found> PrefixForgetter::NodesAfter(const Path& path,
                                                                const KeptPrompts& kept) const {
  using Prompts = std::span<const KeptPrompts::Prompt>;
  // The kept prompts that begin with all tokens of a node, and where its tokens end. They are in
  // order, so those of a child lie side by side among them.
  struct Beginning {
    Prompts prompts;
    size_t end;
  };
  const auto narrowed = [](Prompts prompts, size_t begin, std::span<const TokenId> tokens) {
    const auto next = [&](const KeptPrompts::Prompt& prompt) {
      const auto rest = std::span(prompt.ids).subspan(std::min(begin, prompt.ids.size()));
      return rest.first(std::min(rest.size(), tokens.size()));
    };
    const auto order = [&](const KeptPrompts::Prompt& prompt) {
      const auto theirs = next(prompt);
      return std::lexicographical_compare_three_way(theirs.begin(), theirs.end(), tokens.begin(),
                                                    tokens.end());
    };
    if (prompts.empty() || (order(prompts.front()) == 0 && order(prompts.back()) == 0)) {
      return prompts;
    }
    const auto first = std::ranges::partition_point(
        prompts, [&](const KeptPrompts::Prompt& prompt) { return order(prompt) < 0; });
    const auto last =
        std::partition_point(first, prompts.end(),
                             [&](const KeptPrompts::Prompt& prompt) { return order(prompt) == 0; });
    return Prompts(first, last);
  };

  const size_t begin = path.end() * path.block_tokens;
  const std::span<const TokenId> text = path.text(path.end());
  const auto from = parts_.index.ChildrenWith(path.node(path.end()), text);
  const auto is_after = [&](const KeptPrompts::Prompt& prompt) {
    return prompt.on_path > path.last;
  };
  const auto first = std::ranges::find_if(kept.prompts(), is_after);
  const auto last = std::find_if_not(first, kept.prompts().end(), is_after);
  const Prompts after(first, last);
  std::vector<Found> nodes;
  parts_.index.Walk(from, Beginning{after, begin}, [&](NodeId node, const Beginning& parent) {
    const std::span<const TokenId> tokens = parts_.index.tokens(node);
    const Beginning now{narrowed(parent.prompts, parent.end, tokens), parent.end + tokens.size()};
    nodes.push_back({node, !now.prompts.empty()});
    return now;
  });
  return nodes;
}

// Forgets what begins with all of the forgotten text. REQUIRES: path.is_whole().
void PrefixForgetter::ForgetAfter(const Path& path, const KeptPrompts& kept,
                                  ForgottenText* forgotten) {
  const std::vector<Found> nodes = NodesAfter(path, kept);
  parts_.cursors.DropWith(path.node(path.end()), path.text(path.end()));
  std::vector<bool> has_cursors(parts_.index.max_nodes());
  for (const NodeId node : parts_.cursors.Parents()) {
    if (!PrefixIndex::is_root(node)) has_cursors[static_cast<size_t>(node)] = true;
  }
  const bool own_only = FaultActive(Fault::kEraseOwnOnly);
  std::vector<Found> own;
  if (own_only) {
    const std::vector<TokenId> ids(path.ids.begin(), path.ids.end());
    own = NodesAfter(path, KeptPrompts({ids}, ids));
  }
  for (size_t i = nodes.size(); i-- > 0;) {  // those below first
    const auto [node, is_kept] = nodes[i];
    if (parts_.index.tokens(node).empty()) continue;  // bare, and left with one below it
    if (own_only && (parts_.index.has_children(node) || !own[i].is_kept)) continue;
    if (!is_kept) {
      parts_.residency.Unlink(node, PrefixIndex::RemoveKind::kForgotten);
      continue;
    }
    if (has_cursors[static_cast<size_t>(node)]) parts_.cursors.Drop(node);
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
  parts_.residency.NoteEraseBegins(space.root);
  parts_.cursors.Drop(space.root);
  parts_.index.Clear(space.root, [this](NodeId node) {
    parts_.cursors.Drop(node);
    for (const KvKind& kind : parts_.layout.kinds()) {
      if (!parts_.index.block(node, kind.first_group)) continue;
      parts_.residency.Detach(node, kind, PrefixIndex::RemoveKind::kForgotten);
    }
  });
  parts_.residency.NoteEraseEnds(space.root);
  return parts_.owners.Forget(ns);
}

}  // namespace kvasir
