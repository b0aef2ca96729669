// RecordBuffers: the records of a store that are on their way out or in, and the memory for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/arena.h"
#include "tier/fixed_queue.h"
#include "tier/owner_keys.h"
#include "tier/record_index.h"
#include "tier/segment.h"
#include "tier/tier.h"

namespace kvasir {

// A record on its way out or in.
struct RecordBuffer {
  enum class Use : uint8_t { kFree, kSealing, kQueued, kWriting, kReading, kArrived, kFailed };
  Use use = Use::kFree;
  bool is_cancelled = false;  // erased, or the store is not open any more
  bool is_erased = false;
  bool is_bad = false;  // could not be sealed
  bool has_owner = false;
  bool has_slot = false;
  uint8_t placings = 0;
  std::optional<EntryId> entry;  // of the index; absent: it is free or was cancelled
  RecordName name;
  BlockKey parent{};
  std::optional<RecordName> after;  // absent: it begins a chain
  OwnerId owner{};
  SlotRef slot;
  RecordPlace place;
  uint32_t refs = 0;      // of a read
  uint64_t number = 0;    // of a write that was handed over
  uint64_t since_ns = 0;  // when it was handed over
  uint64_t run_ns = 0;    // not 0: the reader has taken it
  RecordSalt salt{};
  AesTag payload_tag{};

  // Returns whether the index has the record.
  bool is_read() const { return use != Use::kFree && entry && !has_owner; }
  bool is_write() const { return use != Use::kFree && entry && has_owner; }
  void Cancel() {
    is_cancelled = is_erased = true;
    entry.reset();
  }
};

// Buffers of one shape, and scratch memory for two threads. Takes its memory from the arenas; those
// that only count plan it. Allocates nothing after construction. Thread-compatible.
class RecordBuffers {
 public:
  RecordBuffers(Arena& index, Arena& buffers, const RecordShape& shape, uint32_t num_buffers);

  uint32_t size() const { return num_buffers_; }
  RecordBuffer& at(uint32_t buffer) const { return buffers_[buffer]; }
  std::span<std::byte> HeaderOf(uint32_t buffer) const;
  // Returns the part of a write's header that holds its tokens.
  std::span<std::byte> TokensOf(uint32_t buffer) const;
  std::span<std::byte> PayloadOf(uint32_t buffer) const;
  std::span<std::byte> ScratchOf(uint32_t thread) const;

 private:
  RecordShape shape_;
  uint32_t num_buffers_;
  RecordBuffer* buffers_;
  std::byte *payloads_, *scratch_, *headers_;
};

// The buffers in use, in order. Thread-compatible.
struct BufferQueues {
  BufferQueues(Arena& index, uint32_t num_buffers)
      : writes(index, num_buffers), reads(index, num_buffers) {}

  FixedQueue writes, reads;                // buffers that wait for the writer, for the reader
  uint32_t num_writes = 0, num_reads = 0;  // buffers in use
  uint32_t next = 0;                       // where the search for a free buffer begins
  uint64_t queued_bytes = 0;               // of `writes`
  uint64_t last_write = 0;                 // number of the last write that was handed over
  uint32_t num_flushes = 0;                // that wait until the writes are stored
};

}  // namespace kvasir
