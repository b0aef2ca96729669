#include "cache/tier_offer.h"

#include <algorithm>
#include <vector>

#include "cache/record_names.h"

namespace kvasir {
namespace {

// Returns whether the tier has a block's records of all groups of a kind.
bool HasAll(const TierView& tier, const KvLayout& layout, const BlockKey& key, const KvKind& kind) {
  for (uint32_t group = kind.first_group; group < kind.first_group + kind.num_groups; ++group) {
    if (!tier.Has(RecordNameOf(layout, key, group))) return false;
  }
  return true;
}

}  // namespace

TierOffer FindOffer(const TierView& tier, const PrefixIndex& index, const KvLayout& layout,
                    NodeId root, std::span<const TokenId> prompt, std::span<const NodeId> path,
                    uint32_t num_reused) {
  const uint32_t block_tokens = layout.block_tokens();
  const uint32_t num_full = layout.num_full_groups();
  TierOffer offer;
  offer.first_block = offer.end_block = num_reused / block_tokens;
  // The last token is computed in any case: its logits are wanted.
  const auto most = static_cast<uint32_t>((prompt.size() - 1) / block_tokens);
  if (most <= offer.first_block) return offer;
  const auto resident = [&](uint32_t b) { return b < path.size(); };
  offer.keys.push_back(offer.first_block == 0 ? index.key(root)
                                              : index.key(path[offer.first_block - 1]));
  // The kinds of each block that the pool or the tier has; [block - first_block] bits.
  std::vector<uint32_t> kinds_of;
  for (uint32_t b = offer.first_block; b < most; ++b) {
    const auto tokens = prompt.subspan(size_t{b} * block_tokens, block_tokens);
    const BlockKey key =
        resident(b) ? index.key(path[b]) : index.NextKey(root, offer.keys.back(), tokens);
    uint32_t here = 0;
    for (uint32_t k = 0; k < layout.own_kinds().size(); ++k) {
      const KvKind& kind = layout.own_kinds()[k];
      const bool in_pool = resident(b) && index.block(path[b], kind.first_group);
      if (in_pool || HasAll(tier, layout, key, kind)) here |= 1u << k;
    }
    if (num_full > 0 && (here & 1) == 0) break;
    offer.keys.push_back(key);
    kinds_of.push_back(here);
  }
  // The pool's blocks before first_block count for a window too.
  const auto has_window = [&](uint32_t k, uint32_t b) {
    if (b >= offer.first_block) return (kinds_of[b - offer.first_block] >> k & 1) != 0;
    return index.block(path[b], layout.own_kinds()[k].first_group).has_value();
  };
  const auto window_block = [&](uint32_t end, const KvKind& kind) {
    return static_cast<uint32_t>(WindowBegin(uint64_t{end} * block_tokens, kind.reach.window) /
                                 block_tokens);
  };
  const auto resumes_at = [&](uint32_t end) {
    for (uint32_t k = 0; k < layout.own_kinds().size(); ++k) {
      const KvKind& kind = layout.own_kinds()[k];
      if (kind.reach.window == 0) continue;
      for (uint32_t b = end; b-- > window_block(end, kind);) {
        if (!has_window(k, b)) return false;
      }
    }
    return true;
  };
  auto end = static_cast<uint32_t>(offer.first_block + kinds_of.size());
  while (end > offer.first_block && !resumes_at(end)) --end;
  offer.end_block = end;
  offer.keys.resize(end - offer.first_block + 1);
  for (uint32_t b = offer.first_block; b < end; ++b) {
    for (const KvKind& kind : layout.own_kinds()) {
      const bool seen = b >= window_block(end, kind);
      if (!seen || (resident(b) && index.block(path[b], kind.first_group))) continue;
      for (uint32_t g = kind.first_group; g < kind.first_group + kind.num_groups; ++g) {
        const BlockKey& key = offer.keys[b - offer.first_block + 1];
        offer.records.push_back({.block = b,
                                 .group = static_cast<uint16_t>(g),
                                 .from = tier.tier.KindOf(RecordNameOf(layout, key, g))});
      }
    }
  }
  // The pool has it all by now, but not in a way that it can be matched: computing is simpler.
  if (offer.records.empty()) offer.end_block = offer.first_block;
  return offer;
}

}  // namespace kvasir
