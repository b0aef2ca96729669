// Unseals a key file's bytes, and the same bytes with a tag that is right. What is unsealed must be
// sealed again to the same bytes.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "base/check.h"
#include "fuzz_target.h"
#include "tier/owner_keys.h"

namespace {

using namespace kvasir;

constexpr Secret kSecret{1};
constexpr StoreId kStore{2};

void Unseal(std::span<const std::byte> bytes) {
  const std::string name = KeyFileName(kSecret, Digest{});
  const auto key = UnsealKeyFile(kSecret, kStore, name, bytes);
  if (!key || KeyFileName(kSecret, key->owner) != name) return;
  RecordSalt salt;
  std::memcpy(salt.data(), bytes.data() + 16, salt.size());
  const auto sealed = SealKeyFile(kSecret, kStore, *key, salt);
  KV_CHECK(sealed && std::ranges::equal(*sealed, bytes));
}

}  // namespace

KV_FUZZ_TARGET(key_file)(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (size == 0) return 0;
  Unseal(bytes);
  // A file of these bytes that only somebody with the secret could make.
  OwnerKey key;
  RecordSalt salt{};
  std::memcpy(salt.data(), data, std::min(size, salt.size()));
  const auto rest = bytes.subspan(std::min(size, salt.size()));
  std::memcpy(key.key.data(), rest.data(), std::min(rest.size(), key.key.size()));
  auto sealed = SealKeyFile(kSecret, kStore, key, salt);
  KV_CHECK(sealed);
  Unseal(*sealed);
  KV_CHECK(UnsealKeyFile(kSecret, kStore, KeyFileName(kSecret, Digest{}), *sealed)->key == key.key);
  // Any byte changed, it cannot be unsealed.
  const size_t at = data[0] % sealed->size();
  const auto change = std::byte(data[size - 1]);
  (*sealed)[at] ^= change;
  const bool opens =
      UnsealKeyFile(kSecret, kStore, KeyFileName(kSecret, Digest{}), *sealed).has_value();
  KV_CHECK(opens == (change == std::byte{0}));
  return 0;
}
