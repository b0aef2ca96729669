// AES-256-GCM (NIST SP 800-38D) by OpenSSL. After a thread's first call nothing allocates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvasir {

using AesKey = std::array<uint8_t, 32>;

// A copy of a key that wipes itself.
struct WipedKey : AesKey {
  WipedKey() : AesKey{} {}
  WipedKey(const AesKey& key) : AesKey(key) {}  // NOLINT(google-explicit-constructor): a copy
  WipedKey(const WipedKey&) = default;
  WipedKey& operator=(const WipedKey&) = default;
  ~WipedKey();
};
using AesTag = std::array<uint8_t, 16>;

// Seals. The nonce is `number`, little endian, and zeros: a pair of key and number must never seal
// two different messages. `out` may be `plain` itself. False: OpenSSL refused, out of memory.
// Thread-safe. REQUIRES: out.size() == plain.size() < 2^31.
bool AesGcmSeal(const AesKey& key, uint64_t number, std::span<const std::byte> authenticated,
                std::span<const std::byte> plain, std::span<std::byte> out, AesTag* tag);

// Unseals. False: these are not the bytes that were sealed, and `out` has no meaning.
bool AesGcmUnseal(const AesKey& key, uint64_t number, std::span<const std::byte> authenticated,
                  std::span<const std::byte> sealed, std::span<std::byte> out, const AesTag& tag);
// Unseals the same into two places, one after the other.
bool AesGcmUnseal(const AesKey& key, uint64_t number, std::span<const std::byte> authenticated,
                  std::span<const std::byte> sealed, std::span<std::byte> first,
                  std::span<std::byte> second, const AesTag& tag);

}  // namespace kvasir
