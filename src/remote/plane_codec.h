// PlaneCodec: numbers of 16 bits as two planes of bytes, of which zstd compresses the high one.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/arena.h"
#include "base/mutex.h"

namespace kvasir {

// Codes the numbers of a block. Low bytes of KV are noise; signs and exponents, in the high bytes,
// repeat. Takes no memory but what it is given, and wipes that after each call. Thread-compatible.
class PlaneCodec {
 public:
  static uint64_t MemoryBytes(uint64_t payload_bytes);
  // `memory`: MemoryBytes of them, 64-byte aligned, which must outlive it. REQUIRES: payload_bytes
  // is even, and below 2^32.
  PlaneCodec(std::byte* memory, uint64_t payload_bytes);

  // Encodes the numbers into `out`, and returns how many bytes of it they take. Absent: they do not
  // fit, and the bytes of `out` have no meaning. REQUIRES: numbers.size() == payload_bytes.
  std::optional<uint64_t> Encode(std::span<const std::byte> numbers, std::span<std::byte> out);
  // Decodes what lies in the first `coded_bytes` of `numbers`, in place. False: it is not what
  // Encode made, and the bytes of `numbers` have no meaning. REQUIRES: numbers.size() ==
  // payload_bytes >= coded_bytes.
  bool Decode(uint64_t coded_bytes, std::span<std::byte> numbers);

 private:
  std::span<std::byte> plane_;    // [payload_bytes / 2]
  std::span<std::byte> context_;  // of zstd
};

// Codecs for threads that code at the same time; a thread that finds none free waits for another
// one's call to end. Thread-safe.
class PlaneCodecs {
 public:
  static constexpr uint32_t kMost = 8;

  // Takes the memory of `num` codecs, at most kMost, from the arena.
  PlaneCodecs(Arena& arena, uint64_t payload_bytes, uint32_t num);

  bool empty() const { return num_ == 0; }
  // Calls PlaneCodec's function of this name with a free codec, as Decode does. REQUIRES: !empty().
  std::optional<uint64_t> Encode(std::span<const std::byte> numbers, std::span<std::byte> out);
  bool Decode(uint64_t coded_bytes, std::span<std::byte> numbers);

 private:
  uint32_t Take();
  void Release(uint32_t codec);
  PlaneCodec at(uint32_t codec) const;

  const uint64_t payload_bytes_;
  const uint32_t num_;
  std::byte* const memory_;
  Mutex mutex_;
  std::condition_variable released_;
  uint32_t free_ KV_GUARDED_BY(mutex_);  // a bit for each codec that no thread has
};

}  // namespace kvasir
