// MatchResult: what a cache has of a prompt. MatchOptions: where it may look.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "block/block_table.h"
#include "cache/kv_load.h"
#include "cache/namespaces.h"
#include "cache/node_hold.h"
#include "cache/source_key.h"
#include "kvasir/receipt.h"
#include "kvasir/types.h"

namespace kvasir {

// What Match found: pins, which keep the blocks in the pool, and a copy of the Cursor. Move-only.
// Must not outlive its cache.
class MatchResult {
 public:
  // Why not more was reused. Absent when everything possible was reused: only the last token is
  // left to compute (or nothing, with a Cursor), or the prompt continues after the end of what was
  // cached. Otherwise at_token is the first token that was not found, and the reason is:
  //   disabled          reuse is off, for the cache or for this prompt
  //   evicted           the next block or tail was cached and has been evicted
  //   window            more is cached, but not the window that its next token would see
  //   identity_changed  no whole block is cached, but the same owner has this prompt's beginning
  //                     under another Identity
  //   adapter_changed   the same, and the Identities differ in the adapters alone
  //   diverged          the cached text continues with another token than this prompt
  //   rope_changed      more is cached, but rotated for sequences of another length
  //                     (MatchOptions::other_rope)
  //   pool_full         more is cached, but using it takes blocks (a pin of an idle one, a copy of
  //                     one used in part) that others have reserved
  //   cold              nothing of this prompt is cached
  // The reason depends only on namespaces of the prompt's own owner. message_index is left empty.
  std::optional<Miss> miss;
  // Why the KV of the prompt's source must be computed, before anything else
  // (KvCache::ExtendSource); absent when it is here, or there is none. The prompt's own tokens may
  // be here all the same.
  //   disabled          reuse is off
  //   evicted           it was here and had to go
  //   pool_full         it is here, but its idle blocks are reserved by others
  //   identity_changed  the same owner has this source under another Identity
  //   cold              nothing is known of this source
  std::optional<MissReason> source_miss;

  uint32_t num_reused() const { return num_pool_ + num_partial_; }
  uint32_t num_pool() const { return num_pool_; }        // of blocks and tails used whole
  uint32_t num_partial() const { return num_partial_; }  // of a block that holds more than is used
  // Returns how many tokens the tier has after those: in whole blocks, with all that the token
  // after them sees.
  uint32_t num_offered() const { return num_offered_; }
  bool has_cursor() const { return has_cursor_; }  // then num_reused() == prompt size

 private:
  friend class KvCache;
  friend class KvLoader;
  friend class PrefixMatcher;
  NodeHold place_;  // the last block used whole and full, or where the prompt's nodes begin
  bool shares_ = false;
  bool has_cursor_ = false;
  bool counts_ = true;
  uint8_t stores_ = 0;  // KvSequence::stores_
  uint32_t num_offered_ = 0;
  TierOffer offer_;
  AccountId account_ = kNobody;
  uint32_t prompt_tokens_ = 0;
  uint32_t num_pool_ = 0;
  uint32_t num_partial_ = 0;
  uint32_t source_tokens_ = 0;
  uint32_t source_nodes_ = 0;
  std::shared_ptr<const SourceKey> source_;  // of a source that has no nodes yet
  std::vector<TokenId> tokens_;              // the reused ones
  std::vector<float> hidden_;       // of the Cursor: it may be evicted before the match is used
  std::vector<BlockTable> tables_;  // [layer groups]
};

struct MatchOptions {
  bool reuse = true;       // false: match nothing, publish nothing (cache_prompt: false)
  bool use_cursor = true;  // false: the last prompt token is always computed
  // REQUIRES: it has no tokens if it has no ids, or if the layout has no `cross` groups.
  PromptSource source = {};
  // Where the owner's KV of the same model is that RoPE longrope rotated by its other factors.
  // Never served; only the miss's reason looks there.
  NamespaceId other_rope = kSharesNothing;
  // false: the tier is not asked, and what is computed is not handed over to it.
  bool use_tier = true;
  // How a store that machines share is used, where the tier has one.
  RemoteUse remote = RemoteUse::kReadWrite;
  // false: counters() leave this match out: a request that ran before goes on.
  bool counts = true;
  // Nothing is reused beyond so many tokens, and no Cursor of a longer prompt: what follows is
  // computed in another way than what the index has (RetentionPolicy).
  uint32_t most_tokens = std::numeric_limits<uint32_t>::max();
  // false: nothing is asked after the prompt's last token, which may be reused without a Cursor.
  bool computes_last = true;
  // Account to charge when the namespace is kSharesNothing; otherwise its owner is charged.
  AccountId account = kNobody;
};

}  // namespace kvasir
