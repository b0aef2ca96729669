// BlockPool: one arena of equal blocks; BlockRef: a pin on one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "block/ids.h"
#include "kvasir/status.h"

namespace kvasir {

class BlockPool;

// A pin on one Block. Move-only; releases itself. Empty after a move. Must not outlive its pool.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(BlockRef&& other) noexcept;
  BlockRef& operator=(BlockRef&& other) noexcept;
  BlockRef(const BlockRef&) = delete;
  BlockRef& operator=(const BlockRef&) = delete;
  ~BlockRef() { Reset(); }

  explicit operator bool() const { return pool_ != nullptr; }
  BlockId id() const { return id_; }
  const std::byte* data() const;
  std::byte* mutable_data();  // REQUIRES: no thread reads the bytes that are written
  BlockRef Share() const;     // another pin on the same block
  void Reset();

 private:
  friend class BlockPool;
  BlockRef(BlockPool* pool, BlockId id) : pool_(pool), id_(id) {}
  BlockPool* pool_ = nullptr;
  BlockId id_{};
};

// States of a block: free -> pinned (Allocate) -> free, or -> idle when its owner retained it
// (Retain) -> pinned again (Pin) or free (Reclaim). All moves are O(1) and allocate nothing.
// Under AddressSanitizer free blocks are poisoned. One thread at a time.
class BlockPool {
 public:
  // The pool calls it for moves between states, when the pool's own state is consistent again. Must
  // outlive the pool's use.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnIdle(BlockId id) = 0;    // a retained block lost its last pin
    virtual void OnPinned(BlockId id) = 0;  // an idle block was pinned again
    virtual void OnFreed(BlockId id) = 0;   // a block that is not retained lost its last pin
    // Counts the pins of this unshareable block beyond its first changed, by a pin (+1) or a
    // release (-1).
    virtual void OnExtraPin(BlockId, int) {}
  };

  // Maps num_blocks * block_bytes bytes, 64-byte aligned, hugepage-advised, untouched. kExhausted
  // when the address space or memory is refused. REQUIRES: block_bytes is a multiple of 64.
  static Result<std::unique_ptr<BlockPool>> Create(uint64_t block_bytes, uint32_t num_blocks);
  ~BlockPool();  // KV_CHECKs that no pin is left

  // Returns the bytes of bookkeeping beside the arena, allocated at Create.
  static uint64_t MetadataBytes(uint32_t num_blocks);

  void set_observer(Observer* observer) { observer_ = observer; }
  // A pinned block with undefined contents (never read by anyone before it is written), or an empty
  // ref when none is free.
  // Each pin of an unshareable block counts as one block (Observer::OnExtraPin).
  enum class PinKind { kShared, kUnshareable };
  BlockRef Allocate(PinKind kind = PinKind::kShared);
  BlockRef Pin(BlockId id);  // REQUIRES: pinned or idle
  // Makes a block idle, not free, at its last release. REQUIRES (both): pinned.
  void Retain(BlockId id);
  void Unretain(BlockId id);
  void Reclaim(BlockId id);  // idle -> free. REQUIRES: idle
  // Zeroes the block's bytes: now if it is not pinned, else at its last release. O(block_bytes).
  // REQUIRES: not idle.
  void Scrub(BlockId id);
  // Zeroes the bytes of all blocks. REQUIRES: all are free.
  void ZeroAll();

  uint64_t block_bytes() const { return block_bytes_; }
  uint32_t num_blocks() const { return num_blocks_; }
  uint32_t num_free() const { return num_free_; }
  uint32_t num_idle() const { return num_idle_; }
  uint32_t num_pinned() const { return num_blocks_ - num_free_ - num_idle_; }
  uint32_t pin_count(BlockId id) const { return states_[Index(id)].pins; }
  bool retained(BlockId id) const { return states_[Index(id)].retained; }
  bool is_free(BlockId id) const {
    const State& state = states_[Index(id)];
    return state.pins == 0 && !state.retained;
  }
  uint64_t arena_bytes() const { return arena_.size(); }
  const std::byte* data(BlockId id) const { return base_ + Index(id) * block_bytes_; }
  std::byte* mutable_data(BlockId id) { return base_ + Index(id) * block_bytes_; }
  void CheckInvariants() const;  // O(blocks)

 private:
  friend class BlockRef;
  struct State {
    uint32_t pins : 29 = 0;
    uint32_t unshareable : 1 = 0;
    uint32_t retained : 1 = 0;
    uint32_t scrub : 1 = 0;  // zero the bytes at the last release
  };

  BlockPool(uint64_t block_bytes, uint32_t num_blocks, Arena arena);
  static size_t Index(BlockId id) { return static_cast<size_t>(id); }
  void Release(BlockId id);
  void PushFree(BlockId id);
  void Zero(BlockId id);

  uint64_t block_bytes_;
  uint32_t num_blocks_;
  Arena arena_;
  std::byte* base_;  // [num_blocks][block_bytes]
  uint32_t num_free_ = 0;
  uint32_t num_idle_ = 0;
  uint64_t num_extra_pins_ = 0;
  std::vector<State> states_;  // [num_blocks]
  // [num_blocks], the first num_free_ are free, last in first out
  std::vector<uint32_t> free_stack_;
  Observer* observer_ = nullptr;
};

inline BlockRef::BlockRef(BlockRef&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}
inline BlockRef& BlockRef::operator=(BlockRef&& other) noexcept {
  if (this != &other) {
    Reset();
    pool_ = std::exchange(other.pool_, nullptr);
    id_ = other.id_;
  }
  return *this;
}
inline const std::byte* BlockRef::data() const { return pool_->data(id_); }
inline std::byte* BlockRef::mutable_data() { return pool_->mutable_data(id_); }
inline BlockRef BlockRef::Share() const { return pool_->Pin(id_); }
inline void BlockRef::Reset() {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->Release(id_);
}

}  // namespace kvasir
