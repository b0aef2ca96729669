// KvLoader: takes what a tier has read into sequences.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

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

// Unseals the blocks of a load and commits them as if they had been computed: KvCache says when.
// One thread at a time.
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
  // A block of a group that comes from a read, an index of KvLoad::reads_. Absent: it was in the
  // pool when the load began, and has gone.
  struct Unsealing {
    uint32_t block, group;
    std::optional<uint32_t> read;
    bool is_right = false;
  };
  std::vector<Unsealing> ListUnsealings(const KvSequence& sequence, const KvLoad& load,
                                        std::span<const TokenId> known, uint32_t num) const;
  void CountUnsealed(KvLoad& load, std::span<const Unsealing> unsealings, uint32_t first,
                     uint32_t right) const;
  uint32_t Unseal(KvSequence& sequence, KvLoad& load, std::span<const TokenId> known, uint32_t num,
                  const ForEach& for_each);

  const Parts parts_;
};

}  // namespace kvasir
