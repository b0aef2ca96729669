// TokensInTier: how much of a prompt a tier has, for estimates when a request arrives.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "block/kv_layout.h"
#include "cache/identity.h"
#include "index/block_key.h"
#include "tier/tier.h"

namespace kvasir {

// Returns the key of a namespace's root. `salt` is the digest of the salt, absent without one. Two
// owners never have the same key, whatever their salts are.
BlockKey RootKeyOf(std::span<const uint8_t> secret, std::string_view owner,
                   const std::optional<Digest>& salt, const Identity& identity);

// Counts the tokens of the prompt in whole blocks that the tier has, from the first block on, and
// never the last token. 0 for a model with windows, of which a tier has only resume points. It asks
// for keys below this root alone. Thread-safe, unlike KvCache. O(blocks that the tier has) HMACs.
uint32_t TokensInTier(const Tier& tier, const KvLayout& layout, const BlockKey& root,
                      std::span<const TokenId> prompt);

}  // namespace kvasir
