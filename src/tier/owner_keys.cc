// A key file, little endian (also in docs/formats/segment.md):
//   file   := "KVOWNKEY"  u32 version  u32 zero  salt[24]  sealed[80]  tag[16]
//   sealed := key[32]  namespace_id[16]  owner[32]
// by AES-256-GCM, nonce 0, under HMAC-SHA-256(secret, "kvasir owner key" || salt). Authenticated
// with it: the 40 bytes before it, the store's id, and the file's name.
#include "tier/owner_keys.h"

#include <openssl/crypto.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/hex.h"
#include "base/result.h"
#include "base/system_error.h"

namespace kvasir {
namespace {

constexpr std::string_view kMagic = "KVOWNKEY", kNamePurpose = "kvasir owner",
                           kSealPurpose = "kvasir owner key";
constexpr uint32_t kKeyVersion = 1;
constexpr size_t kClearBytes = 40, kSealedBytes = 80, kNameBytes = 64;
static_assert(kClearBytes + kSealedBytes + sizeof(AesTag) == kKeyFileBytes);

AesKey SealingKey(const Secret& secret, const RecordSalt& salt) {
  return HmacKey(secret).Of(std::as_bytes(std::span(kSealPurpose)), std::as_bytes(std::span(salt)));
}

using Authenticated = std::array<std::byte, kClearBytes + sizeof(StoreId) + kNameBytes>;
Authenticated AuthenticatedOf(std::span<const std::byte> clear, const StoreId& store,
                              std::string_view name) {
  Authenticated bytes;
  std::memcpy(bytes.data(), clear.data(), kClearBytes);
  std::memcpy(bytes.data() + kClearBytes, store.data(), store.size());
  std::memcpy(bytes.data() + kClearBytes + store.size(), name.data(), kNameBytes);
  return bytes;
}

}  // namespace

std::string KeyFileName(const Secret& secret, const Digest& owner) {
  return ToHex(
      HmacKey(secret).Of(std::as_bytes(std::span(kNamePurpose)), std::as_bytes(std::span(owner))));
}

std::optional<KeyFileBytes> SealKeyFile(const Secret& secret, const StoreId& store,
                                        const OwnerKey& key, const RecordSalt& salt) {
  KeyFileBytes file{};
  std::memcpy(file.data(), kMagic.data(), kMagic.size());
  std::memcpy(file.data() + 8, &kKeyVersion, sizeof(kKeyVersion));
  std::memcpy(file.data() + 16, salt.data(), salt.size());
  std::byte plain[kSealedBytes];
  std::memcpy(plain, key.key.data(), 32);
  std::memcpy(plain + 32, key.namespace_id.data(), 16);
  std::memcpy(plain + 48, key.owner.data(), 32);
  AesKey sealing = SealingKey(secret, salt);
  AesTag tag;
  const bool sealed =
      AesGcmSeal(sealing, 0, AuthenticatedOf(file, store, KeyFileName(secret, key.owner)), plain,
                 std::span(file).subspan(kClearBytes, kSealedBytes), &tag);
  OPENSSL_cleanse(plain, sizeof(plain));
  OPENSSL_cleanse(sealing.data(), sealing.size());
  if (!sealed) return std::nullopt;
  std::memcpy(file.data() + kClearBytes + kSealedBytes, tag.data(), tag.size());
  return file;
}

std::optional<OwnerKey> UnsealKeyFile(const Secret& secret, const StoreId& store,
                                      std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.size() != kKeyFileBytes || name.size() != kNameBytes) return std::nullopt;
  uint32_t version = 0, zero = 0;
  std::memcpy(&version, bytes.data() + 8, sizeof(version));
  std::memcpy(&zero, bytes.data() + 12, sizeof(zero));
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0 || version != kKeyVersion ||
      zero != 0) {
    return std::nullopt;
  }
  RecordSalt salt;
  std::memcpy(salt.data(), bytes.data() + 16, salt.size());
  AesTag tag;
  std::memcpy(tag.data(), bytes.data() + kClearBytes + kSealedBytes, tag.size());
  AesKey sealing = SealingKey(secret, salt);
  std::byte plain[kSealedBytes];
  const bool is_unsealed = AesGcmUnseal(sealing, 0, AuthenticatedOf(bytes, store, name),
                                        bytes.subspan(kClearBytes, kSealedBytes), plain, tag);
  std::optional<OwnerKey> key;
  if (is_unsealed) {
    key.emplace();
    std::memcpy(key->key.data(), plain, 32);
    std::memcpy(key->namespace_id.data(), plain + 32, 16);
    std::memcpy(key->owner.data(), plain + 48, 32);
  }
  OPENSSL_cleanse(plain, sizeof(plain));
  OPENSSL_cleanse(sealing.data(), sealing.size());
  return key;
}

void WipeKeys(std::span<OwnerKey> keys) {
  OPENSSL_cleanse(static_cast<void*>(keys.data()), keys.size_bytes());
}

uint64_t OwnerKeys::BytesFor(uint32_t max_owners) {
  return RoundUp(uint64_t{max_owners} * sizeof(OwnerKey), kTierPageBytes);
}

Result<OwnerKeys> OwnerKeys::Create(uint32_t max_owners) {
  const uint64_t bytes = BytesFor(max_owners);
  void* area = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (area == MAP_FAILED) {
    return Fail(Code::kExhausted, "the system refuses {} bytes for keys: {}", bytes,
                std::strerror(errno));
  }
  mlock(area, bytes);
  madvise(area, bytes, MADV_DONTDUMP);
  return OwnerKeys(max_owners, static_cast<OwnerKey*>(area), bytes);
}

OwnerKeys::OwnerKeys(uint32_t max_owners, OwnerKey* keys, uint64_t bytes)
    : keys_(keys), bytes_(bytes), places_(max_owners) {}
OwnerKeys::OwnerKeys(OwnerKeys&& other) noexcept
    : keys_(std::exchange(other.keys_, nullptr)),
      bytes_(other.bytes_),
      places_(std::move(other.places_)) {}

OwnerKeys::~OwnerKeys() {
  if (keys_ == nullptr) return;
  OPENSSL_cleanse(keys_, bytes_);
  munmap(keys_, bytes_);
}

std::optional<OwnerId> OwnerKeys::Find(const Digest& owner) const {
  for (size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    if (place.is_taken && !place.is_hidden && keys_[i].owner == owner) {
      return OwnerId(static_cast<uint16_t>(i));
    }
  }
  return std::nullopt;
}

std::optional<OwnerId> OwnerKeys::FindNamespace(const OwnerTag& id) const {
  for (size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    if (place.is_taken && !place.is_hidden && keys_[i].namespace_id == id) {
      return OwnerId(static_cast<uint16_t>(i));
    }
  }
  return std::nullopt;
}

std::optional<OwnerId> OwnerKeys::Add(const OwnerKey& key) {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].is_taken) continue;
    places_[i] = {.is_taken = true};
    keys_[i] = key;
    return OwnerId(static_cast<uint16_t>(i));
  }
  return std::nullopt;
}

void OwnerKeys::Hide(OwnerId id) { at(id).is_hidden = true; }

void OwnerKeys::Release(OwnerId id) {
  at(id) = {};
  OPENSSL_cleanse(static_cast<void*>(&keys_[static_cast<size_t>(id)]), sizeof(OwnerKey));
}

void OwnerKeys::Clear() {
  for (Place& place : places_) place = {};
  OPENSSL_cleanse(static_cast<void*>(keys_), bytes_);
}

std::vector<Digest> OwnerKeys::Owners() const {
  std::vector<Digest> owners;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].is_taken && !places_[i].is_hidden) owners.push_back(keys_[i].owner);
  }
  return owners;
}

OwnerKey OwnerKeys::KeyOf(OwnerId id) const { return keys_[static_cast<size_t>(id)]; }

std::optional<OwnerId> OwnerKeys::Unused() const {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].is_taken && !places_[i].is_hidden && places_[i].uses == 0) {
      return OwnerId(static_cast<uint16_t>(i));
    }
  }
  return std::nullopt;
}

}  // namespace kvasir
