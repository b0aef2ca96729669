// KvCache: pool + index behind Match, Fetch, Extend, Commit, Truncate.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "block/block_pool.h"
#include "block/block_table.h"
#include "cache/identity.h"
#include "kvasir/receipt.h"
#include "kvasir/types.h"

namespace kvasir {

class KvCache;
enum class NamespaceId : uint32_t {};

// What one cache holds, in bytes and tokens; a snapshot.
struct CacheUsage {
  uint32_t num_blocks, free_blocks, idle_blocks, pinned_blocks;
  uint64_t block_bytes;
  uint64_t cached_tokens;   // tokens reachable through the index (a shared token counts once)
  uint64_t live_tokens;     // tokens of running sequences that no index node holds
  uint64_t num_cursors;
  uint64_t nodes;
};

// Monotonic counters, in tokens unless named otherwise.
struct CacheCounters {
  uint64_t queried_tokens, hit_tokens_pool, hit_tokens_partial;
  uint64_t cursor_hits;      // prompts
  uint64_t committed_blocks, evicted_blocks, copied_blocks /* copy on write */, deduplicated_blocks;
  uint64_t misses[5];        // prompts, by MissReason
};

// The arithmetic that plan and the allocator share.
struct CachePlan {
  uint32_t num_blocks;
  uint64_t block_bytes;
  uint64_t pool_bytes;    // num_blocks * block_bytes
  uint64_t index_bytes;   // nodes, tokens, hash table, ghosts, policy: allocated at start, exactly
  uint64_t cursor_bytes;  // hidden states of cursors: allocated at start, exactly
  uint64_t total_bytes() const { return pool_bytes + index_bytes + cursor_bytes; }
};

struct KvCacheOptions {
  BlockLayout layout;  // of the one LayerGroup `full`
  uint64_t budget_bytes;
  uint32_t hidden_size;   // numbers of a Cursor's hidden state, f32
  uint32_t num_cursors = 256;
  std::array<uint8_t, 32> secret;  // server secret: root of all salts and keys
  bool reuse = true;  // false: nothing outlives its sequence (--cache sequence, none)
};

// The KV of one sequence: its tokens and BlockTable. States: tokens [0, num_committed) are computed,
// accepted and published where they fill blocks; [num_committed, num_tokens) were given room by
// Extend and are being computed. Move-only; releases its blocks, tail first. Must not outlive its
// cache. A sequence created with share = false publishes nothing.
class KvSequence;   // owner of cache/ defines it here; the accessors below are the contract:
//   uint32_t num_tokens() const;      // with room, computed or not
//   uint32_t num_committed() const;
//   std::span<const TokenId> tokens() const;
//   const BlockTable& table() const;  // what attention reads
//   BlockTable& table();
//   bool shares() const;

// An answer of Match: pins on what the pool holds. Holding it keeps those blocks.
class MatchResult;
//   uint32_t num_reused() const;          // pool + partial
//   uint32_t num_pool() const, num_partial() const;
//   std::optional<Miss> miss;             // message_index is left empty
//   bool has_cursor() const;              // then num_reused() == prompt size
//   uint32_t newly_pinned() const;        // blocks that were idle before this match (admission)

struct MatchOptions {
  bool reuse = true;       // false: match nothing, publish nothing (cache_prompt: false)
  bool use_cursor = true;  // false: the last prompt token is always computed
};

// One thread at a time. Nothing here waits.
class KvCache {
 public:
  static CachePlan Plan(const KvCacheOptions& options);
  // kInvalidArgument when the budget does not hold two blocks.
  static Result<std::unique_ptr<KvCache>> Create(KvCacheOptions options);

  // The same (tenant, identity) gives the same id. Two tenants never share a block.
  NamespaceId OpenNamespace(std::string_view tenant, const Identity& identity);

  // Longest resident prefix of `prompt`: whole blocks, then the best partial block, then a Cursor.
  // Without a Cursor at most prompt.size() - 1 tokens. O(blocks) token comparisons; no HMAC.
  MatchResult Match(NamespaceId ns, std::span<const TokenId> prompt, const MatchOptions& options);
  // Turns a match into a sequence that holds its tokens (all committed). What lower tiers offer is
  // loaded here; the pool's part is shared as it stands, the partial block copied when extended.
  // `reserve_tokens`: the sequence's largest length; tables and tokens grow to it without allocating.
  KvSequence Fetch(MatchResult match, uint32_t reserve_tokens);
  // The Cursor's hidden state (f32, [hidden_size], after the final norm) of a match that has one;
  // valid until the next call on the cache.
  std::span<const float> CursorHidden(const MatchResult& match) const;

  // Room for `tokens` after the sequence's end: takes free blocks, evicts idle ones, copies a shared
  // tail before it is written. kExhausted, with the sequence unchanged, when the pool is full of
  // pinned blocks.
  Status Extend(KvSequence& sequence, std::span<const TokenId> tokens);
  // The next `num_tokens` tokens are computed and accepted: full blocks get their BlockKey and enter
  // the index; a block that somebody else published meanwhile is swapped for theirs (equal bits) and
  // freed. Also publishes the partial tail when `end` (prompt's end, sequence's end) is set.
  enum class CommitKind { kRunning, kEnd };
  void Commit(KvSequence& sequence, uint32_t num_tokens, CommitKind kind);
  // Keeps a Cursor at the sequence's committed end. Evicts the oldest Cursor when full.
  void KeepCursor(const KvSequence& sequence, std::span<const float> hidden);
  // Drops tokens [num_tokens, ...): uncommitted ones, or, for a rewound session, committed ones
  // (published blocks stay in the index).
  void Truncate(KvSequence& sequence, uint32_t num_tokens);
  // Another sequence with the same committed tokens: O(blocks) pins, nothing copied until written.
  KvSequence Fork(const KvSequence& sequence, uint32_t reserve_tokens);

  // Forgets all of a namespace: idle blocks are zeroed and freed, those in use leave the index now
  // and are zeroed when their last pin goes.
  void Erase(NamespaceId ns);

  // Blocks that could be had now: free + idle.
  uint32_t available_blocks() const;
  CacheUsage usage() const;
  const CacheCounters& counters() const;
  const CachePlan& plan() const;
  const BlockLayout& layout() const;
  void CheckInvariants() const;  // O(everything); tests
};

}  // namespace kvasir
