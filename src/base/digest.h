// SHA-256 and HMAC-SHA-256 (FIPS 180-4, RFC 2104) over OpenSSL, with the pads of a key precomputed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvasir {

using Digest = std::array<uint8_t, 32>;

// Incremental SHA-256. One thread at a time.
class Sha256 {
 public:
  Sha256();
  Sha256& Update(std::span<const std::byte> bytes);
  Sha256& Update(std::string_view bytes);
  Sha256& UpdateU64(uint64_t value);  // 8 bytes, little endian
  Digest Finish();                    // once

 private:
  struct State {
    alignas(8) unsigned char bytes[128];
  };
  State state_;  // holds a SHA256_CTX
};

Digest Sha256Of(std::string_view bytes);

// HMAC-SHA-256 under one key; its two pad states are computed once, so that a message of up to 55
// bytes past a block boundary costs only its own compressions and one more. Immutable after
// construction; Of() is thread-safe.
class HmacKey {
 public:
  explicit HmacKey(std::span<const uint8_t> key);
  Digest Of(std::span<const std::byte> first, std::span<const std::byte> second = {}) const;

 private:
  alignas(8) unsigned char inner_[128];
  alignas(8) unsigned char outer_[128];
};

}  // namespace kvasir
