// GMAC: AES-256-GCM over data that is only authenticated (NIST SP 800-38D), from OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/secret.h"

namespace kvasir {

using GmacTag = std::array<uint8_t, 16>;

// Thread-safe. A pair of key and number must never tag two different messages: then a tag could be
// forged. So a key is derived from what is random for each writing.
class GmacKey {
 public:
  // HMAC-SHA-256(secret, purpose, salt).
  GmacKey(const Secret& secret, std::string_view purpose, std::span<const uint8_t> salt);
  // REQUIRES: bytes.size() < 2^31.
  GmacTag Of(uint64_t number, std::span<const std::byte> bytes) const;

 private:
  std::array<uint8_t, 32> key_;
};

// In time that does not depend on where they differ.
bool SameTag(const GmacTag& a, const GmacTag& b);

}  // namespace kvasir
