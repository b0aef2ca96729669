// BlockPool: one arena of equal blocks; BlockRef: a pin on one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "block/block_layout.h"
#include "kvasir/status.h"

namespace kvasir {

enum class BlockId : uint32_t {};

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
  std::byte* mutable_data();  // REQUIRES: the caller may write (see BlockTable)
  BlockRef Share() const;     // another pin on the same block
  void Reset();

 private:
  friend class BlockPool;
  BlockRef(BlockPool* pool, BlockId id) : pool_(pool), id_(id) {}
  BlockPool* pool_ = nullptr;
  BlockId id_{};
};

// States of a block: free -> pinned (Allocate) -> free, or -> idle when its owner retained it
// (SetRetained) -> pinned again (Pin) or free (Reclaim). All moves are O(1) and allocate nothing.
// One thread at a time.
class BlockPool {
 public:
  // Told when the last pin of a retained block goes (OnIdle) and when an idle block is pinned again
  // (OnPinned). Must outlive the pool. Called with the pool in a consistent state.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnIdle(BlockId id) = 0;
    virtual void OnPinned(BlockId id) = 0;
  };

  // Maps num_blocks * layout.block_bytes() bytes, 64-byte aligned, hugepage-advised, untouched.
  // kExhausted when the address space or memory is refused.
  static Result<std::unique_ptr<BlockPool>> Create(BlockLayout layout, uint32_t num_blocks);
  ~BlockPool();  // KV_CHECKs that no pin is left

  void set_observer(Observer* observer) { observer_ = observer; }
  // A pinned block with undefined contents (never read by anyone before it is written), or an empty
  // ref when none is free.
  BlockRef Allocate();
  BlockRef Pin(BlockId id);                    // REQUIRES: pinned or idle
  void SetRetained(BlockId id, bool retained);  // retained: idle instead of free at the last release
  void Reclaim(BlockId id);                    // idle -> free. REQUIRES: idle

  const BlockLayout& layout() const { return layout_; }
  uint32_t num_blocks() const { return num_blocks_; }
  uint32_t num_free() const;
  uint32_t num_idle() const;
  uint32_t num_pinned() const;
  uint32_t pin_count(BlockId id) const;
  uint64_t arena_bytes() const;  // what was mapped: equals the plan's figure
  const std::byte* data(BlockId id) const;
  std::byte* mutable_data(BlockId id);
  void CheckInvariants() const;

 private:
  friend class BlockRef;
  BlockPool(BlockLayout layout, uint32_t num_blocks);
  void Release(BlockId id);

  BlockLayout layout_;
  uint32_t num_blocks_;
  Observer* observer_ = nullptr;
  // The owner of block/ fills in the rest.
};

}  // namespace kvasir
