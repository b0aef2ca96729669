// Reservation: a pin on blocks that a request's sequences may still take.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "base/moves.h"
#include "block/ids.h"
#include "block/kv_layout.h"
#include "kvasir/status.h"

namespace kvasir {

class KvReserves;

// The most KV of n sequences with one prompt, in the groups of a layout.
struct KvDemand {
  uint32_t prompt_tokens;
  uint32_t tokens;  // of each sequence whose KV is computed, the prompt's included
  uint32_t n = 1;   // sequences
  // false: each computes the prompt again, in separate blocks. REQUIRES: a match without reuse.
  bool shares_prompt = true;
  uint32_t source_tokens = 0;  // PromptSource::tokens
  // The most tokens of a sequence in `full` groups, of which it drops some (KvCache::Retain). It
  // then needs a block of each group for a copy, and in the end shares nothing with the others. The
  // largest number: it drops none.
  uint32_t most_full_tokens = std::numeric_limits<uint32_t>::max();
  // Blocks of each `full` group: whole ones of the prompt that are pins on other sequences' blocks
  // (KvCache::ReadIn), and those of the request's other sequences (KvCache::ReserveAfter).
  uint32_t read_blocks = 0, beside_blocks = 0;
  // Returns the source's blocks and the prompt's whole blocks once, the rest per sequence; windows
  // per sequence (SequenceBlocks). Others may share the blocks from before a restart, so those
  // after it come on top.
  uint64_t blocks(const KvLayout& layout, uint32_t step_tokens) const;
  // Returns the largest `tokens` below 2^31 for which `num_blocks` are enough; 0 when they do not
  // hold even the prompt. O(log tokens).
  uint64_t MaxTokens(const KvLayout& layout, uint32_t step_tokens, uint64_t num_blocks) const;
};

// Blocks that are kept for the sequences of one request: KvCache::Reserve makes it, sequences that
// were fetched or forked with it draw from it. A block that a sequence gives back by Truncate may
// be drawn again; a sequence that ends (is destroyed, or Close was called) releases what it would
// still have needed. Move-only. Destroying the Reservation releases what was not drawn; its
// sequences can go on with unreserved blocks. Must not outlive its cache. One thread at a time.
//
// Invariant of the cache: free + idle blocks >= those reserved and not drawn (KvAccounts has the
// whole one).
class Reservation {
 public:
  Reservation() = default;  // empty
  Reservation(Reservation&&) noexcept = default;
  Reservation& operator=(Reservation&& other) noexcept { return MoveInto(*this, std::move(other)); }
  ~Reservation() { Release(); }

  uint32_t blocks() const { return state_ ? state_->blocks : 0; }  // not drawn yet
  // Lets each of its `sequences` sequences that have not ended grow to `tokens` tokens. kExhausted,
  // with nothing changed, when too few blocks are unreserved; about kv_max when it is the account's
  // own maximum that leaves too few.
  Status Grow(uint32_t tokens, uint32_t sequences);
  // Gives back what an engine does not need any more. REQUIRES: num_blocks <= blocks().
  void Shrink(uint32_t num_blocks);
  void Release();  // as the destructor does
  // Lends its blocks to a match of what it was made for: the match may pin as many idle blocks
  // more. KvCache::ReserveLent or EndLoan follows, and nothing in between. REQUIRES: it is not
  // lent.
  void Lend();
  // Has again what it lent. REQUIRES: no pin of that match is left.
  void EndLoan();

 private:
  friend class KvCache;
  friend class KvPublisher;
  friend class KvReserves;
  friend class KvSequence;
  struct State {
    KvReserves* reserves;
    AccountId account;
    uint32_t blocks;  // not drawn yet
    // The most blocks of one sequence: in `full` groups, and in windows.
    uint32_t full_blocks, window_blocks;
    uint32_t most_full_tokens;  // KvDemand's
    bool shares_prompt;
    bool released = false;
    uint32_t lent = 0;  // blocks
  };
  std::shared_ptr<State> state_;
};

}  // namespace kvasir
