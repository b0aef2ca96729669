#include "cache/record_names.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvasir {

RecordName RecordNameOf(const KvLayout& layout, const BlockKey& key, uint32_t group) {
  const uint32_t kind = layout.kind_of(group);
  return {.key = key,
          .layer_group = static_cast<uint16_t>(kind),
          .part = static_cast<uint16_t>(group - layout.kinds()[kind].first_group)};
}

RecordFacts RecordFactsOf(const KvLayout& layout, const BlockKey& key, const BlockKey& parent,
                          bool is_first, uint32_t group, std::span<const TokenId> tokens,
                          const Digest& owner) {
  RecordFacts facts{.name = RecordNameOf(layout, key, group),
                    .parent = parent,
                    .owner = owner,
                    .tokens = tokens,
                    .after = {}};
  if (group >= layout.num_full_groups()) {
    if (layout.num_full_groups() > 0) facts.after = RecordNameOf(layout, key, 0);
  } else if (!is_first) {
    facts.after = RecordNameOf(layout, parent, group);
  }
  return facts;
}

ForgetFacts ForgetFactsOf(const KvLayout& layout, const Digest& owner, const BlockKey& root,
                          std::span<const TokenId> ids, uint32_t first, uint32_t last,
                          std::shared_ptr<const KeptPrompts> kept) {
  const size_t block_tokens = layout.block_tokens();
  const size_t begin = last / block_tokens * block_tokens;
  ForgetFacts facts{.owner = owner,
                    .parent = root,
                    .is_first = begin == 0,
                    .tokens = {},
                    .path = {},
                    .parts = {},
                    .keys = {},
                    .has_chains = layout.num_full_groups() > 0,
                    .kept = {}};
  const HmacKey hmac(root);
  for (size_t at = 0; at < begin; at += block_tokens) {
    facts.parent = ChildKey(hmac, facts.parent, ids.subspan(at, block_tokens));
    if (at + block_tokens > first) facts.path.push_back(facts.parent);
  }
  // All whole blocks of the path that have a token of the text, or come after it.
  facts.keys = facts.path;
  BlockKey key = facts.parent;
  for (size_t at = begin; at + block_tokens <= ids.size(); at += block_tokens) {
    key = ChildKey(hmac, key, ids.subspan(at, block_tokens));
    facts.keys.push_back(key);
  }
  for (uint32_t group = 0; group < layout.num_own_groups(); ++group) {
    facts.parts.push_back(RecordNameOf(layout, {}, group));
  }
  const auto tokens = ids.subspan(begin, last - begin + 1);
  facts.tokens.assign(tokens.begin(), tokens.end());
  if (kept == nullptr || kept->prompts().empty()) return facts;
  facts.kept = [hmac, root, block_tokens, first, kept = std::move(kept)] {
    std::vector<BlockKey> keys, way;  // `way`: of the prompt before
    for (const KeptPrompts::Prompt& prompt : kept->prompts()) {
      way.resize(std::min(way.size(), prompt.shared / block_tokens));
      if (prompt.on_path <= first) continue;
      const std::span<const TokenId> theirs = prompt.ids;
      for (size_t at = way.size() * block_tokens; at + block_tokens <= theirs.size();
           at += block_tokens) {
        way.push_back(
            ChildKey(hmac, way.empty() ? root : way.back(), theirs.subspan(at, block_tokens)));
        if (at + block_tokens > first) keys.push_back(way.back());
      }
    }
    return keys;
  };
  return facts;
}

}  // namespace kvasir
