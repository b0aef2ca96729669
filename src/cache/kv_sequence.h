// KvSequence: the KV of one sequence.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/moves.h"
#include "block/block_table.h"
#include "block/ids.h"
#include "block/kv_layout.h"
#include "cache/node_hold.h"
#include "cache/reservation.h"
#include "cache/source_key.h"
#include "kvasir/types.h"

namespace kvasir {

// What a sequence keeps of its blocks in `full` groups: those of `kept` (indices of the text's
// blocks, ascending), and all from `first` on.
struct RetainedBlocks {
  std::span<const uint32_t> kept;
  uint32_t beginning;  // of the first of `kept`: blocks [0, beginning) of the text, which stay
  uint32_t first;
  uint32_t most_tokens;  // that it holds in `full` groups from now on
  // Sequences that the reservation is for, if this is the only one that has blocks; else 0.
  uint32_t sequences;
};

// The KV of one sequence: its tokens and a BlockTable for each layer group. States: tokens [0,
// num_committed) are computed, accepted and published where they fill blocks; tokens
// [num_committed, num_tokens) have room from Extend and are being computed. Tables of a window hold
// what the next token sees and what is being computed; those of `full` groups hold all, until
// KvCache::Retain drops some. Move-only; releases its blocks, tail first.
// Must not outlive its cache. A sequence that was fetched with reuse off, or whose namespace or
// place was erased since, publishes nothing. One thread at a time.
class KvSequence {
 public:
  KvSequence() = default;  // empty; only good for being assigned to
  KvSequence(KvSequence&&) noexcept = default;
  KvSequence& operator=(KvSequence&& other) noexcept { return MoveInto(*this, std::move(other)); }
  ~KvSequence() { Close(); }

  // Says that it will not be extended any more, and releases what was reserved for that.
  void Close();

  uint32_t num_tokens() const { return static_cast<uint32_t>(tokens_.size()); }  // with room
  uint32_t num_committed() const { return num_committed_; }
  std::span<const TokenId> tokens() const { return tokens_; }
  // Returns what attention reads and writes, [layer groups]; own groups have one size(), `cross`
  // groups have the blocks of the source.
  std::span<const BlockTable> tables() const { return tables_; }
  const BlockTable& table() const { return tables_[0]; }
  // Returns the blocks that it keeps before those of its tables, [full groups], side by side; empty
  // before the first Retain.
  std::span<const BlockTable> kept() const { return kept_; }
  std::span<const uint32_t> kept_blocks() const { return kept_blocks_; }  // their place in the text
  bool retains() const { return retains_; }  // KvCache::Retain succeeded
  // Tells whether Commit enters what it computes into the index.
  bool publishes() const { return shares_ && place_.is_current(); }
  void StopPublishing() {
    shares_ = false;
    stores_ = 0;
  }
  // Stops publishing and gives up its place in the index: what it begins with may leave. Its blocks
  // are zeroed when it releases them.
  void LeaveIndex() {
    StopPublishing();
    place_.Leave();
  }
  NamespaceId ns() const { return place_.ns(); }
  AccountId account() const { return account_; }
  // Tells whether its place in the index is there; false after an erasure.
  bool has_place() const { return place_.is_current(); }
  uint32_t source_tokens() const { return source_.tokens; }
  // Tells whether it has the blocks of its source's KV, or needs none.
  bool HoldsSource() const { return source_.tokens == 0 || tables_.back().size() > 0; }
  // Tells whether its source has no KV, or that KV is computed and will not change.
  bool has_source() const { return source_.is_whole; }

  // Takes points before its end at which Commit keeps its windows in the index, so that a later
  // prompt can continue there. Numbers of tokens, ascending. Without windows they have no effect.
  void KeepResumePoints(std::vector<uint32_t> points) { resume_ = {.all = std::move(points)}; }

  // Adds one more, unless it has passed.
  void AddResumePoint(uint32_t point);
  // Returns the first block whose window it really has: a load skips those that only tokens of the
  // load itself would see.
  uint64_t FirstWindowBlock(const KvLayout& layout, uint32_t group) const;

 private:
  friend class KvCache;
  friend class KvLoader;
  friend class KvPublisher;
  friend class KvReserves;
  struct ResumePoints {
    std::vector<uint32_t> all;  // ascending
    size_t next = 0;            // the first one whose blocks are not all kept yet
  };
  // The text that `cross` groups read. Forks have the same one.
  struct Source {
    uint32_t tokens = 0;
    uint32_t nodes = 0;    // the depth in the index at which the sequence's tokens begin
    bool is_whole = true;  // its KV is computed and will not change, or it has none
    // Until it has its nodes: then place_ is the root.
    std::shared_ptr<const SourceKey> key;
  };
  // Its last committed full block; meaningful while publishing. First, so that the blocks are
  // released before it, and the node is then bare if nothing else needs it.
  NodeHold place_;
  bool shares_ = false;
  uint8_t stores_ = 0;  // of the tier, a bit each: what it publishes is handed over to them
  AccountId account_ = kNobody;
  uint32_t num_committed_ = 0;
  bool closed_ = false;
  uint32_t unbacked_ = 0;  // blocks that it gave back and that could not be reserved for it again
  // A block of each `full` group is reserved for the copy of its tail, because the index or others
  // have that. KvReserves::DropCopy gives them back if it is written in place after all.
  bool has_copy_ = false;
  std::shared_ptr<Reservation::State> reserved_;  // that it draws from; shared with its forks
  std::vector<TokenId> tokens_;
  // A load ended or will end here: blocks of windows that the token here does not see were not
  // loaded, and have no meaning. 0: nothing was loaded.
  uint32_t windows_from_ = 0;
  ResumePoints resume_;
  Source source_;
  bool retains_ = false;
  uint32_t most_full_blocks_ = std::numeric_limits<uint32_t>::max();
  std::vector<uint32_t> kept_blocks_;  // of kept_
  std::vector<BlockTable> kept_;
  std::vector<BlockTable> tables_;  // after kept_: leaves are released first
};

}  // namespace kvasir
