#include "testing/prefix_replay.h"

#include "base/result.h"
#include "cache/kv_cache.h"

namespace kvasir {
namespace {

constexpr uint32_t kBlockTokens = 16;
// A token that no block has. It follows each prompt, because Match never reuses the last token.
constexpr TokenId kLastToken = -1;

// Describes a block of 1 KiB, which is never written.
BlockLayout SmallLayout() {
  return BlockLayout(BlockShape{.block_tokens = kBlockTokens,
                                .num_layers = 1,
                                .kv_heads = 1,
                                .head_dim = 16,
                                .k_format = {KvFormat::kF16},
                                .v_format = {KvFormat::kF16}});
}

}  // namespace

Result<PrefixReplay> ReplayPrefixes(std::span<const std::vector<uint32_t>> prompts,
                                    uint32_t num_blocks, const EvictionChoice& eviction) {
  if (num_blocks < 2) {
    return Fail(Code::kInvalidArgument, "replay: {} blocks; give at least 2", num_blocks);
  }
  KvCacheOptions options{.layout = SmallLayout(),
                         .budget_bytes = uint64_t{1} << 40,  // max_blocks is the limit
                         .hidden_size = 1,
                         .num_cursors = 0,
                         .num_namespaces = 1,
                         .max_blocks = num_blocks,
                         .secret = {1},
                         .eviction = &eviction};
  KV_ASSIGN(const auto cache, KvCache::Create(std::move(options)));
  const NamespaceId ns = cache->EnterNamespace("replay", {});
  PrefixReplay replay;
  for (const std::vector<uint32_t>& prompt : prompts) {
    std::vector<TokenId> tokens;
    for (const uint32_t block : prompt) {
      tokens.insert(tokens.end(), kBlockTokens, static_cast<TokenId>(block & 0x7fffffff));
    }
    tokens.push_back(kLastToken);
    const auto num_tokens = static_cast<uint32_t>(tokens.size() - 1);
    MatchResult match = cache->Match(ns, tokens, {});
    const uint32_t found = match.num_reused();
    replay.blocks += prompt.size();
    replay.hits += found / kBlockTokens;
    KvSequence sequence = cache->Fetch(std::move(match), num_tokens);
    KV_TRY(cache->Extend(sequence, std::span(tokens).subspan(found, num_tokens - found)));
    cache->Commit(sequence, num_tokens - found, KvCache::CommitKind::kRunning);
  }
  replay.evictions = cache->counters().evicted_blocks;
  return replay;
}

}  // namespace kvasir
