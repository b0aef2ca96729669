// GHASH (NIST SP 800-38D, 6.4) over data that is only authenticated, by carry-less products of 128,
// 256 or 512 bits. For gmac.h, which checks what the CPU has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir {

// Blocks of 16 bytes whose products are summed before one reduction.
inline constexpr size_t kGhashGroup = 32;

// [i]: the hash key to the power kGhashGroup - i, times x, with reversed bytes, so that products of
// GCM's mirrored polynomials need no shift.
struct alignas(64) GhashPowers {
  uint64_t power[kGhashGroup][2];
};

struct GhashKernels {
  // hash_key: AES of 16 zeros, as GCM defines it.
  void (*expand)(const uint8_t hash_key[16], GhashPowers* powers);
  // Computes the hash of `size` bytes, padded with zeros to whole blocks, and of the block with
  // their number.
  void (*hash)(const GhashPowers& powers, const std::byte* bytes, size_t size, uint8_t out[16]);
};

namespace pclmul {
extern const GhashKernels kGhash;
}
namespace vpclmul256 {
extern const GhashKernels kGhash;
}
namespace vpclmul512 {
extern const GhashKernels kGhash;
}

}  // namespace kvasir
