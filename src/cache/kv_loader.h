// KvLoader: takes what a tier has read into sequences.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "block/block_pool.h"
#include "block/kv_layout.h"
#include "cache/block_sealer.h"
#include "cache/kv_load.h"
#include "cache/kv_sequence.h"
#include "cache/namespaces.h"
#include "index/prefix_index.h"
#include "kvasir/cache_counters.h"
#include "kvasir/types.h"

namespace kvasir {

class KvCache;
class MatchResult;

// Opens the blocks of a load and commits them as if they had been computed: KvCache says when. One
// thread at a time.
class KvLoader {
 public:
  using Front = KvLoad::Front;

  // What it uses; all must outlive it.
  struct Parts {
    KvCache& cache;  // Extend, Commit and Truncate alone
    const KvLayout& layout;
    uint32_t step_tokens;
    BlockPool& pool;
    const PrefixIndex& index;
    const Namespaces& namespaces;
    CacheCounters& counters;
    Tier* tier;  // nullptr: there is none, and no load
  };
  explicit KvLoader(const Parts& parts) : parts_(parts) {}

  KvLoad TakeOffer(MatchResult& match) const;
  void Bind(KvSequence& sequence, const KvLoad& load) const;
  Front Continue(KvSequence& sequence, KvLoad& load, std::span<const TokenId> known,
                 const ForEach& for_each, uint64_t end_ns);

 private:
  uint32_t Open(KvSequence& sequence, KvLoad& load, std::span<const TokenId> known, uint32_t num,
                const ForEach& for_each);

  const Parts parts_;
};

}  // namespace kvasir
