// KvLoad: the blocks that a sequence gets from a tier instead of computing them.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/moves.h"
#include "block/kv_layout.h"
#include "cache/tier_offer.h"
#include "kvasir/cache_counters.h"
#include "tier/tier.h"

namespace kvasir {

// A load under way: which records were asked for, and which have come. KvLoader takes
// from it; destroying it gives back its buffers. States: active until its last block was taken or
// let go, or something that cannot be done without is missing. Move-only. Must not outlive its
// cache. One thread at a time.
class KvLoad {
 public:
  KvLoad() = default;  // not active
  // Starts to load an offer that is not empty. `layout` must outlive it. `counts`:
  // MatchOptions::counts.
  KvLoad(Tier* tier, const KvLayout& layout, TierOffer offer, bool counts);
  KvLoad(KvLoad&&) noexcept = default;
  KvLoad& operator=(KvLoad&& other) noexcept { return MoveInto(*this, std::move(other)); }
  ~KvLoad() { Drop(); }

  bool active() const { return tier_ != nullptr; }
  // Returns the first block that is still wanted, and where the offer ends.
  uint32_t end_block() const { return offer_.end_block; }
  uint32_t num_records() const { return static_cast<uint32_t>(reads_.size()); }
  // Returns how many records of a kind are still wanted. O(records).
  uint32_t num_left(TierKind kind) const;
  // Returns how many tokens' KV came from the tier so far, how many of those from a store far away,
  // and the bytes of their payloads.
  uint32_t loaded_tokens() const { return loaded_tokens_; }
  uint32_t remote_tokens() const { return remote_tokens_; }
  // Returns how many tokens came from the tier, or with blocks that another sequence had brought
  // into the pool meanwhile.
  uint32_t taken_tokens() const { return taken_tokens_; }
  uint64_t loaded_bytes() const { return loaded_bytes_[0] + loaded_bytes_[1]; }
  uint64_t loaded_bytes(TierKind kind) const { return loaded_bytes_[static_cast<size_t>(kind)]; }
  // Tells whether a record was damaged or could not be read.
  bool is_broken() const { return is_broken_; }
  // Tells whether a store stopped to answer.
  bool is_down() const { return is_down_; }
  // Gives back all buffers and asks for nothing more.
  void Drop();

  // Asks for the records of blocks from `block` on that were not asked for yet, in order of use, as
  // far as the tier has buffers. Those before `block` are given up.
  void AskAhead(uint32_t block);
  enum class Front {
    kArrived,
    kReading,  // the next block is not here yet
    kMissing,  // it does not come, or begins within a block of the offer: compute it
    kEnded     // nothing more is expected
  };
  // Returns how many blocks from `block`, the next one, have arrived, at most `most`; `front`: what
  // has become of the one after them, kArrived if the count ended before it.
  uint32_t NumArrived(uint32_t block, uint32_t most, Front* front);
  // Returns the tokens from a sequence's end to the next block that was asked for and may still
  // come; the largest number without one. O(records).
  uint32_t TokensBeforeRead(uint32_t committed) const;
  // Gives up the records of blocks that the sequence has.
  void PassBefore(uint64_t committed);
  // Adds the tokens that have come since the last call.
  void CountIn(CacheCounters& counters);

 private:
  friend class KvLoader;
  struct Read {
    enum class State : uint8_t { kNotAsked, kAsked, kGone } state = State::kNotAsked;
    ReadId id{};
  };
  RecordName NameOf(size_t record) const;
  Front FrontOf(uint32_t block);
  // Tells whether a record was asked for and has come, or is being read.
  bool MayCome(const Read& read) const;
  void End(uint32_t record, ReadEnd how);

  MovedPointer<Tier> tier_;
  const KvLayout* layout_ = nullptr;
  TierOffer offer_;
  std::vector<Read> reads_;  // [offer_.records]
  uint32_t next_ = 0;        // the first record that was not asked for
  uint32_t front_ = 0;       // the first record whose block the sequence does not have
  uint32_t loaded_tokens_ = 0, taken_tokens_ = 0, remote_tokens_ = 0;
  uint32_t counted_loaded_ = 0, counted_taken_ = 0, counted_remote_ = 0;  // of them, in CountIn
  std::array<uint64_t, kNumTierKinds> loaded_bytes_{};
  bool is_broken_ = false, is_down_ = false;
  bool counts_ = true;
};

}  // namespace kvasir
