// GMAC: AES-256-GCM over data that is only authenticated (NIST SP 800-38D). AES is OpenSSL's. The
// hash over the data is ghash.h's where the CPU has carry-less products, else OpenSSL's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/ghash.h"
#include "base/secret.h"

namespace kvasir {

using GmacTag = std::array<uint8_t, 16>;

// Implementations of the hash. All give the same tags.
enum class GmacPath { kOpenssl, kPclmul, kVpclmul256, kVpclmul512 };
std::string_view NameOf(GmacPath path);
std::vector<GmacPath> SupportedGmacPaths();  // on this CPU, slowest first

// The tags of one key. Thread-safe. A pair of key and nonce must never tag two different messages,
// or a tag could be forged. GmacKey ensures that.
class Gmac {
 public:
  using Nonce = std::array<uint8_t, 12>;

  // REQUIRES: path is a supported one.
  Gmac(const std::array<uint8_t, 32>& key, GmacPath path);
  // REQUIRES: bytes.size() < 2^31.
  GmacTag Of(const Nonce& nonce, std::span<const std::byte> bytes) const;

 private:
  GmacTag OpensslTag(const Nonce& nonce, std::span<const std::byte> bytes) const;

  std::array<uint8_t, 32> key_;
  const GhashKernels* ghash_;  // nullptr: OpenSSL's
  GhashPowers powers_{};
};

// Tags by number: the nonce is the number, little endian, and zeros. The key is derived from a salt
// that is random for each file, so that no pair of key and nonce occurs twice. Thread-safe.
class GmacKey {
 public:
  // Makes the key HMAC-SHA-256(secret, purpose, salt). REQUIRES: path is a supported one.
  GmacKey(const Secret& secret, std::string_view purpose, std::span<const uint8_t> salt,
          GmacPath path);
  GmacKey(const Secret& secret, std::string_view purpose, std::span<const uint8_t> salt)
      : GmacKey(secret, purpose, salt, SupportedGmacPaths().back()) {}
  // REQUIRES: bytes.size() < 2^31.
  GmacTag Of(uint64_t number, std::span<const std::byte> bytes) const;

 private:
  Gmac gmac_;
};

// Compares in constant time.
bool SameTag(const GmacTag& a, const GmacTag& b);

}  // namespace kvasir
