// RemoteBuffers: the values of a fleet's store that are on their way out or in, and their memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/arena.h"
#include "remote/plane_codec.h"
#include "remote/remote_tier_options.h"
#include "tier/fixed_queue.h"
#include "tier/owner_keys.h"
#include "tier/tier.h"

namespace kvasir {

// A value on its way out or in.
struct RemoteBuffer {
  enum class Use : uint8_t { kFree, kSealing, kQueued, kReading, kArrived, kFailed };
  Use use = Use::kFree;
  bool is_erased = false;  // cancelled by an erase or a forget
  bool is_bad = false;     // could not be sealed
  RecordName name;
  OwnerId owner{};
  uint64_t bytes = 0;                    // of the value, once it is sealed or has come
  uint32_t refs = 0;                     // of a read
  ReadState ended = ReadState::kFailed;  // of a read that failed: kFailed, kGone or kDown
  uint64_t number = 0;                   // of a write that was handed over
};

// Buffers of the longest value each, and the memory of codecs and of a probe. Takes its memory from
// the arenas; those that only count plan it. Allocates nothing after construction.
// Thread-compatible: the bytes belong to who seals, sends, receives or unseals them.
class RemoteBuffers {
 public:
  static constexpr uint64_t kProbeBytes = uint64_t{1} << 20;

  RemoteBuffers(Arena& index, Arena& out, const RemoteTierOptions& options);

  uint32_t size() const { return num_; }
  RemoteBuffer& operator[](uint32_t buffer) const { return all_[buffer]; }
  std::span<RemoteBuffer> all() const { return {all_, num_}; }
  // Returns a buffer's memory, for the longest value.
  std::span<std::byte> ValueOf(uint32_t buffer) const;
  std::span<std::byte> probe() const { return {probe_, kProbeBytes}; }
  PlaneCodecs& codecs() { return codecs_; }

 private:
  const uint64_t value_bytes_;
  const uint32_t num_;
  RemoteBuffer* const all_;
  std::byte *const values_, *const probe_;
  PlaneCodecs codecs_;
};

// The buffers in use, in order. Thread-compatible.
struct RemoteQueues {
  RemoteQueues(Arena& index, uint32_t num_buffers)
      : reads(index, num_buffers), writes(index, num_buffers) {}

  FixedQueue reads, writes;                // buffers that wait for the reader, for the writer
  uint32_t num_reads = 0, num_writes = 0;  // buffers in use
  uint32_t next = 0;                       // where the search for a free buffer begins
  uint64_t last_write = 0;                 // number of the last write that was handed over
  uint64_t num_failed = 0;                 // writes handed over that came to nothing
};

}  // namespace kvasir
