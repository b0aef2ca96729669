// KvReserves: how many blocks are promised to sequences, and to which.
#pragma once

#include <cstdint>

#include "block/block_pool.h"
#include "block/kv_layout.h"
#include "cache/kv_accounts.h"
#include "cache/kv_sequence.h"
#include "cache/reservation.h"

namespace kvasir {

// The arithmetic of what sequences may still take. It moves no block: what it promises, it takes
// from the accounts. Allocates nothing but in Reserve. One thread at a time.
class KvReserves {
 public:
  // REQUIRES: all outlive it. `step_tokens`: of one call to KvCache::Extend.
  KvReserves(const KvLayout& layout, uint32_t step_tokens, const BlockPool& pool,
             KvAccounts& accounts)
      : layout_(layout), step_tokens_(step_tokens), pool_(pool), accounts_(accounts) {}

  // Reserves num_blocks blocks for sequences of this demand. kExhausted as Promise.
  Result<Reservation> Reserve(AccountId account, const KvDemand& demand, uint64_t num_blocks);
  // Returns the blocks of the demand alone.
  uint64_t BlocksOf(const KvDemand& demand) const { return demand.blocks(layout_, step_tokens_); }

  // Adds to a reservation. kExhausted, with nothing changed, when fewer blocks are unreserved;
  // about kv_max when it is the account's own maximum that leaves too few.
  Status Promise(Reservation::State& state, uint64_t num_blocks);
  void TakeBack(Reservation::State& state, uint32_t num_blocks);
  // Reserves again what a reservation lent, without a look at what is unreserved.
  void EndLoan(Reservation::State& state);
  Status Grow(Reservation::State& state, uint32_t tokens, uint32_t sequences);

  static Reservation::State* Of(const KvSequence& sequence);  // nullptr: none
  // Returns how many blocks a sequence can take now: those reserved for it, and those not reserved.
  uint32_t available(const KvSequence& sequence) const;
  // Counts that the sequence takes blocks, from its reservation first.
  void Draw(KvSequence& sequence, uint64_t num_blocks);
  // Counts that the sequence gave back blocks, and so needs num_blocks more to reach its largest
  // length. Reserves as many of them as are unreserved, and counts the others as unbacked:
  // ReleaseRest must not release blocks for those.
  void GiveBack(KvSequence& sequence, uint64_t num_blocks);
  // Releases what is reserved for the copy of a sequence's tail, if anything: it is written in
  // place, because what had it left the index or ended.
  void DropCopy(KvSequence& sequence);
  // Makes a reservation what `sequences` sequences need of which this one alone holds blocks, as
  // far as there are so many. Those that do not exist yet need as much as this one.
  void Settle(KvSequence& sequence, uint32_t sequences);
  // Ends the sequence: releases what it would still have taken.
  void ReleaseRest(KvSequence& sequence);
  uint64_t RestOf(const KvSequence& sequence, const Reservation::State& state) const;

  // Tells whether extending the sequence copies the last block of a group, or of `full` groups (how
  // many blocks), before it is written.
  bool CopiesTail(const KvSequence& sequence, uint32_t group) const;
  uint32_t NumCopied(const KvSequence& sequence) const;
  uint32_t NumWindowBlocks(const KvSequence& sequence) const;  // that it holds
  uint32_t NumFullBlocks(const KvSequence& sequence) const;    // the same, each counted once

 private:
  // The most blocks of one sequence of so many tokens.
  struct Most {
    uint32_t full_blocks, window_blocks;
  };
  Most MostOf(uint32_t tokens, uint32_t most_full_tokens) const;
  // Returns the most blocks that a sequence may have in `full` groups from now on.
  static uint64_t MostFull(const KvSequence& sequence, const Reservation::State& state);

  const KvLayout& layout_;
  const uint32_t step_tokens_;
  const BlockPool& pool_;
  KvAccounts& accounts_;
};

}  // namespace kvasir
