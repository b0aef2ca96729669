// What the cache holds, for people who look.
#include <algorithm>
#include <deque>

#include "cache/kv_cache.h"

namespace kvasir {

PrefixList KvCache::ListPrefixes(std::string_view owner, size_t max_runs, size_t max_tokens) const {
  struct Place {
    NodeId first;  // of the run
    std::optional<uint32_t> parent;
    uint32_t space = 0, begin = 0;
  };
  std::deque<Place> places;
  PrefixList list;
  size_t num_tokens = 0;
  // The most used ones first. What encoder-decoder models keep by source is left out.
  const auto add_children = [&](NodeId node, std::optional<uint32_t> parent, uint32_t space,
                                uint32_t begin) {
    std::vector<NodeId> children = index_->ChildrenWith(node, {});
    std::ranges::stable_sort(children, std::greater(), [&](NodeId n) { return index_->hits(n); });
    for (const NodeId child : children) {
      if (index_->tokens(child).front() == SourceKey::kMark) continue;
      places.push_back({child, parent, space, begin});
    }
  };
  const Digest digest = Sha256Of(owner);
  uint32_t num_spaces = 0;
  for (size_t i = 1; i < namespaces_.size(); ++i) {
    const Namespace& space = Of(NamespaceId(i));
    if (space.owner != digest || !index_->has_children(space.root)) continue;
    add_children(space.root, std::nullopt, num_spaces++, 0);
  }
  for (; !places.empty(); places.pop_front()) {
    if (list.runs.size() == max_runs || num_tokens >= max_tokens) {
      list.has_more = true;
      break;
    }
    const Place& place = places.front();
    PrefixRun run{.parent = place.parent,
                  .space = place.space,
                  .begin = place.begin,
                  .hits = index_->hits(place.first)};
    NodeId node = place.first;
    while (true) {
      const auto tokens = index_->tokens(node);
      run.tokens.insert(run.tokens.end(), tokens.begin(), tokens.end());
      for (uint32_t group = 0; group < layout().num_groups(); ++group) {
        const std::optional<BlockId> block = index_->block(node, group);
        if (!block) continue;
        ++run.blocks;
        if (pool_->pin_count(*block) > 0) ++run.used_blocks;
      }
      if (num_tokens + run.tokens.size() >= max_tokens) break;
      const std::vector<NodeId> children = index_->ChildrenWith(node, {});
      if (children.size() != 1 || index_->hits(children[0]) != run.hits) break;
      node = children[0];
    }
    num_tokens += run.tokens.size();
    const auto index = static_cast<uint32_t>(list.runs.size());
    const auto end = static_cast<uint32_t>(place.begin + run.tokens.size());
    add_children(node, index, place.space, end);
    list.runs.push_back(std::move(run));
  }
  return list;
}

}  // namespace kvasir
