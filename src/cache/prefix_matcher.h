// PrefixMatcher: finds what a cache has of a prompt, and says why it has no more.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "block/block_pool.h"
#include "block/kv_layout.h"
#include "cache/cursor_store.h"
#include "cache/kv_accounts.h"
#include "cache/kv_match.h"
#include "cache/namespaces.h"
#include "cache/residency.h"
#include "cache/source_key.h"
#include "index/prefix_index.h"
#include "tier/tier.h"

namespace kvasir {

// Pins what it finds; changes nothing else, except hits and a Cursor's last use. One thread at a
// time.
class PrefixMatcher {
 public:
  // What it reads; all must outlive it.
  struct Parts {
    const KvLayout& layout;
    BlockPool& pool;
    PrefixIndex& index;
    CursorStore& cursors;
    const KvAccounts& accounts;
    const Namespaces& namespaces;
    Residency& residency;                    // for places in the index
    const Tier* tier;                        // nullptr: there is none
    bool reuse;                              // KvCacheOptions::reuse
    uint64_t source_seed, source_hash_mask;  // of SourceKeys
  };
  explicit PrefixMatcher(const Parts& parts) : parts_(parts) {}

  MatchResult Match(NamespaceId ns, std::span<const TokenId> prompt, const MatchOptions& options);
  // Cuts the match to num_tokens tokens, which fill whole blocks, or to none when it does not hold
  // the window before their end.
  void Shorten(MatchResult& match, uint32_t num_tokens) const;
  // Counts the tokens of the prompt in whole blocks below `root`. Windows are not looked at.
  uint32_t WholeBlocksHeld(NodeId root, std::span<const TokenId> prompt) const;

 private:
  // What pins cover of a prompt, and whether more is here whose blocks others have reserved.
  struct Pinned {
    uint32_t tokens;
    bool pool_is_full = false;
  };
  bool MayPin(NodeId node, AccountId account) const;
  Pinned PinPrefix(std::span<const TokenId> prompt, MatchResult& match,
                   std::vector<NodeId>& path) const;
  Pinned PinWindows(std::span<const NodeId> path, uint32_t num_tokens, MatchResult& match) const;
  std::optional<MissReason> PinSource(MatchResult& match) const;
  uint32_t AddOffer(NamespaceId ns, std::span<const TokenId> prompt, std::span<const NodeId> path,
                    uint32_t num_reused, RemoteUse remote, MatchResult& match);
  uint8_t StoresFor(RemoteUse remote) const;
  bool UseCursor(std::span<const TokenId> prompt, NodeId node, MatchResult& match);
  void Settle(std::span<const TokenId> prompt, std::span<const NodeId> path, uint32_t num_reused,
              MatchResult& match);

  std::optional<Miss> Explain(NamespaceId ns, NodeId node, std::span<const TokenId> prompt,
                              uint32_t num_covered, const MatchOptions& options,
                              const SourceKey* source) const;
  MissReason WhySourceIsMissing(NamespaceId ns, const SourceKey& key) const;
  std::optional<MissReason> OtherIdentityHas(NamespaceId ns, std::span<const TokenId> prompt,
                                             uint32_t num_covered, const SourceKey* source) const;
  std::pair<NodeId, uint32_t> Walk(NodeId node, std::span<const TokenId> prompt) const;
  uint32_t BeginningHeld(NodeId node, std::span<const TokenId> prompt) const;

  const Parts parts_;
};

}  // namespace kvasir
