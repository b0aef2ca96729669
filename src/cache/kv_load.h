// KvLoad: the blocks that a sequence gets from a tier instead of computing them.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tier/tier.h"

namespace kvasir {

// What a tier has of a prompt, beyond what the pool has: whole blocks, from where the match ends.
struct TierOffer {
  struct Record {
    uint32_t block;  // of the sequence
    uint16_t group;  // of the layout
  };
  uint32_t first_block = 0, end_block = 0;
  std::vector<BlockKey> keys;   // [end_block - first_block + 1]; [0]: of the block before the first
  std::vector<Record> records;  // in order of use: the blocks' order, then the groups'

  bool empty() const { return end_block == first_block; }
};

// A load under way: which records were asked for, and which have come. KvCache fills it and takes
// from it; destroying it gives back its buffers. States: active until its last block was taken or
// let go, or something that cannot be done without is missing. Move-only. Must not outlive its
// cache. One thread at a time.
class KvLoad {
 public:
  KvLoad() = default;  // not active
  KvLoad(KvLoad&& other) noexcept { *this = std::move(other); }
  KvLoad& operator=(KvLoad&& other) noexcept {
    if (this == &other) return *this;
    Drop();
    tier_ = std::exchange(other.tier_, nullptr);
    offer_ = std::move(other.offer_);
    reads_ = std::move(other.reads_);
    next_ = other.next_;
    front_ = other.front_;
    loaded_tokens_ = other.loaded_tokens_;
    taken_tokens_ = other.taken_tokens_;
    counted_loaded_ = other.counted_loaded_;
    counted_taken_ = other.counted_taken_;
    loaded_bytes_ = other.loaded_bytes_;
    is_broken_ = other.is_broken_;
    counts_ = other.counts_;
    return *this;
  }
  ~KvLoad() { Drop(); }

  bool active() const { return tier_ != nullptr; }
  // First block that is still wanted, and where the offer ends.
  uint32_t end_block() const { return offer_.end_block; }
  uint32_t num_records() const { return static_cast<uint32_t>(reads_.size()); }
  uint32_t num_left() const { return static_cast<uint32_t>(reads_.size()) - front_; }  // records
  // Tokens whose KV came from the tier so far, and the bytes of their payloads.
  uint32_t loaded_tokens() const { return loaded_tokens_; }
  // The same, and those of blocks that somebody else had brought into the pool meanwhile.
  uint32_t taken_tokens() const { return taken_tokens_; }
  uint64_t loaded_bytes() const { return loaded_bytes_; }
  // Whether a record was damaged or could not be read.
  bool is_broken() const { return is_broken_; }
  // Gives back all buffers and asks for nothing more.
  void Drop();

 private:
  friend class KvCache;
  struct Read {
    enum class State : uint8_t { kNotAsked, kAsked, kGone } state = State::kNotAsked;
    ReadId id{};
  };
  void End(Read& read, ReadEnd how);

  Tier* tier_ = nullptr;
  TierOffer offer_;
  std::vector<Read> reads_;  // [offer_.records]
  uint32_t next_ = 0;        // the first record that was not asked for
  uint32_t front_ = 0;       // the first record that is not behind the sequence
  uint32_t loaded_tokens_ = 0, taken_tokens_ = 0;
  uint32_t counted_loaded_ = 0, counted_taken_ = 0;  // of them, in KvCache::counters()
  uint64_t loaded_bytes_ = 0;
  bool is_broken_ = false;
  bool counts_ = true;  // MatchOptions::counts
};

}  // namespace kvasir
