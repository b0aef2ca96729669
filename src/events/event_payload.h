// EventPayload: the bytes of a batch, shared by what is kept for replays and what waits for
// sockets.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/wipe.h"

namespace kvasir {

// Counts the bytes of payloads that are still there. Thread-safe.
struct EventMemory {
  std::atomic<uint64_t> live_bytes = 0;  // relaxed: nothing else depends on it
};

// Wiped at its end, by whichever thread lets go of it last. Immutable.
class EventPayload {
 public:
  // `age`: something that all payloads between two erases share.
  EventPayload(std::span<const std::byte> bytes, std::shared_ptr<EventMemory> memory,
               std::shared_ptr<const int> age)
      : bytes_(bytes.begin(), bytes.end()), memory_(std::move(memory)), age_(std::move(age)) {
    memory_->live_bytes.fetch_add(bytes_.size(), std::memory_order_relaxed);
  }
  ~EventPayload() {
    memory_->live_bytes.fetch_sub(bytes_.size(), std::memory_order_relaxed);
    Wipe(&bytes_);
  }
  EventPayload(const EventPayload&) = delete;
  EventPayload& operator=(const EventPayload&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  const std::shared_ptr<EventMemory> memory_;  // a queue of libzmq may outlive the stream
  const std::shared_ptr<const int> age_;
};

// A numbered message.
struct EventBatch {
  uint64_t sequence = 0;
  uint32_t num_blocks = 0;  // that it tells of
  bool is_snapshot = false;
  std::shared_ptr<const EventPayload> payload;
};

}  // namespace kvasir
