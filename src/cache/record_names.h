// How blocks are called in a tier: names and facts of their records.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "block/kv_layout.h"
#include "cache/kept_prompts.h"
#include "tier/tier.h"

namespace kvasir {

// Names the record of a block of a group, of the tokens that `key` stands for.
RecordName RecordNameOf(const KvLayout& layout, const BlockKey& key, uint32_t group);

// Names the record without which this one is of no use: a window's needs that of `full`, and a
// block's needs the one before it, whose key is `parent`. `is_first`: there is none before it.
RecordFacts RecordFactsOf(const KvLayout& layout, const BlockKey& key, const BlockKey& parent,
                          bool is_first, uint32_t group, std::span<const TokenId> tokens,
                          const Digest& owner);

// Returns what a tier must forget so that tokens [first, last] of `ids` are gone with all that was
// computed after them (KvCache::Forget). `root`: the key of the namespace's root. O(last) HMACs of
// blocks; ForgetFacts::kept does one for each block of `kept`, if that is not nullptr.
ForgetFacts ForgetFactsOf(const KvLayout& layout, const Digest& owner, const BlockKey& root,
                          std::span<const TokenId> ids, uint32_t first, uint32_t last,
                          std::shared_ptr<const KeptPrompts> kept);

}  // namespace kvasir
