// WriteQueue: blocks of the pool that wait to be sealed for a tier, the oldest first.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"
#include "block/ids.h"

namespace kvasir {

// A list through the blocks themselves: each block is in it at most once, and leaves it in O(1)
// wherever it stands. Allocates only in its constructor. One thread at a time.
class WriteQueue {
 public:
  explicit WriteQueue(uint32_t num_blocks) : links_(num_blocks) {}
  static uint64_t BytesFor(uint32_t num_blocks) { return uint64_t{num_blocks} * sizeof(Link); }

  // Puts a block at the end, unless it waits already.
  void Push(BlockId block) {
    Link& link = At(block);
    if (link.ticket != 0) return;
    link = {.ticket = ++last_ticket_, .before = last_, .after = kNone};
    (last_ == kNone ? first_ : links_[last_].after) = static_cast<uint32_t>(block);
    last_ = static_cast<uint32_t>(block);
    ++size_;
  }
  // Does nothing for a block that does not wait.
  void Remove(BlockId block) {
    Link& link = At(block);
    if (link.ticket == 0) return;
    (link.before == kNone ? first_ : links_[link.before].after) = link.after;
    (link.after == kNone ? last_ : links_[link.after].before) = link.before;
    link = {};
    --size_;
  }
  bool Contains(BlockId block) const { return links_[static_cast<size_t>(block)].ticket != 0; }
  std::optional<BlockId> front() const {
    return first_ == kNone ? std::nullopt : std::optional(BlockId{first_});
  }
  uint32_t size() const { return size_; }

  // Returns a point of the queue: what was put in before it has left when HasPassed says so.
  // Tickets grow from block to block.
  uint64_t last_ticket() const { return last_ticket_; }
  bool HasPassed(uint64_t ticket) const {
    return first_ == kNone || links_[first_].ticket > ticket;
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Link {
    uint64_t ticket = 0;  // 0: it does not wait
    uint32_t before = kNone, after = kNone;
  };

  Link& At(BlockId block) { return links_[static_cast<size_t>(block)]; }

  std::vector<Link> links_;  // [blocks of the pool]
  uint32_t first_ = kNone, last_ = kNone, size_ = 0;
  uint64_t last_ticket_ = 0;
};

}  // namespace kvasir
