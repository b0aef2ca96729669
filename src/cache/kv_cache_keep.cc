// Marks of blocks that idle longer than others.
#include <algorithm>

#include "cache/kv_cache.h"

namespace kvasir {

uint32_t KvCache::Keep(const KvSequence& sequence, uint32_t tokens, uint32_t ttl_s) {
  const uint32_t block_tokens = layout().block_tokens();
  const uint32_t depth = std::min(tokens, sequence.num_committed_) / block_tokens;
  if (!sequence.publishes() || depth == 0) return 0;
  NodeId end = sequence.place_.node();  // of its last whole block that the index has
  const uint32_t end_depth = sequence.source_.nodes + depth;
  while (index_->depth(end) > end_depth) end = index_->parent(end);
  if (index_->depth(end) < end_depth) return 0;
  const auto most =
      static_cast<uint64_t>(options_.keep_share * static_cast<double>(plan_.num_blocks));
  bool keeps = true;
  const auto mark = [&](NodeId node, const KvKind& kind, uint32_t num_blocks) {
    const auto block = index_->block(node, kind.first_group);
    if (!block || pool_->pin_count(*block) == 0) return false;
    return policy_->Mark(*block, residency_.FactsOf(node, *block),
                         {.account = static_cast<uint32_t>(sequence.account_),
                          .num_blocks = num_blocks * kind.num_groups,
                          .ttl_ns = uint64_t{ttl_s} * 1'000'000'000},
                         most);
  };
  for (const KvKind& kind : layout().kinds()) {
    if (kind.reach.kind == KvReach::Kind::kFull) {
      keeps &= mark(end, kind, depth);
    } else if (kind.reach.window > 0) {  // what the next token sees
      const uint64_t first = WindowBegin(depth * block_tokens, kind.reach.window) / block_tokens;
      NodeId node = end;
      for (uint32_t at = depth; at > first; --at, node = index_->parent(node)) {
        keeps &= mark(node, kind, 1);
      }
    }
  }
  return keeps ? depth * block_tokens : 0;
}

}  // namespace kvasir
