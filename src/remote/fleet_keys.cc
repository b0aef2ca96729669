// An owner object, little endian (also in docs/formats/remote.md):
//   object := "KVFLEETO"  u32 version  u32 zero  salt[24]  sealed[40]  tag[16]
//   sealed := u64 epoch  random[32]
// by AES-256-GCM, nonce 0, under HMAC-SHA-256(fleet secret, "kvasir fleet owner object" || salt).
// Authenticated with it: the 40 bytes before it, and the object's name.
#include "remote/fleet_keys.h"

#include <openssl/crypto.h>

#include <cstring>

#include "base/fault.h"
#include "base/hex.h"

namespace kvasir {
namespace {

constexpr std::string_view kObjectMagic = "KVFLEETO";
constexpr uint32_t kObjectVersion = 1;
constexpr size_t kObjectHead = 40, kObjectSealed = 40;
static_assert(kObjectHead + kObjectSealed + sizeof(AesTag) == kOwnerObjectBytes);

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }
template <typename Array>
std::span<const std::byte> BytesOf(const Array& array) {
  return std::as_bytes(std::span(array));
}

std::string HexName(const Digest& digest) { return ToHex(std::span(digest).first(16)); }

AesKey ObjectKey(const HmacKey& key, const RecordSalt& salt) {
  return key.Of(BytesOf(std::string_view("kvasir fleet owner object")), BytesOf(salt));
}

std::string Authenticated(std::span<const std::byte> object, std::string_view name) {
  return std::string(reinterpret_cast<const char*>(object.data()), kObjectHead) + std::string(name);
}

}  // namespace

Secret FleetCacheSecret(const Secret& fleet) {
  return HmacKey(fleet).Of(BytesOf(std::string_view("kvasir fleet blocks")));
}

Digest FleetIdentity(const Secret& fleet, const Digest& identity) {
  return HmacKey(fleet).Of(BytesOf(std::string_view("kvasir fleet disk")), BytesOf(identity));
}

FleetKeys::FleetKeys(const Secret& fleet)
    : key_(fleet),
      prefix_("kvasir/1/" + HexName(key_.Of(BytesOf(std::string_view("kvasir fleet name"))))) {}

std::string FleetKeys::OwnerName(const Digest& owner) const {
  return prefix_ + "/" +
         HexName(key_.Of(BytesOf(std::string_view("kvasir fleet owner")), BytesOf(owner)));
}

std::optional<OwnerObject> FleetKeys::SealOwner(std::string_view name, const OwnerEpoch& epoch,
                                                const RecordSalt& salt) const {
  OwnerObject object{};
  std::memcpy(object.data(), kObjectMagic.data(), kObjectMagic.size());
  std::memcpy(object.data() + 8, &kObjectVersion, sizeof(kObjectVersion));
  std::memcpy(object.data() + 16, salt.data(), salt.size());
  const std::span<std::byte> sealed = std::span(object).subspan(kObjectHead, kObjectSealed);
  std::memcpy(sealed.data(), &epoch.epoch, 8);
  std::memcpy(sealed.data() + 8, epoch.random.data(), epoch.random.size());
  AesKey key = ObjectKey(key_, salt);
  AesTag tag;
  const bool done = AesGcmSeal(key, 0, BytesOf(std::string_view(Authenticated(object, name))),
                               sealed, sealed, &tag);
  OPENSSL_cleanse(key.data(), key.size());
  std::memcpy(object.data() + kObjectHead + kObjectSealed, tag.data(), tag.size());
  return done ? std::optional(object) : std::nullopt;
}

std::optional<OwnerEpoch> FleetKeys::UnsealOwner(std::string_view name,
                                                 std::span<const std::byte> bytes) const {
  if (bytes.size() != kOwnerObjectBytes) return std::nullopt;
  uint32_t version = 0, zero = 0;
  std::memcpy(&version, bytes.data() + 8, sizeof(version));
  std::memcpy(&zero, bytes.data() + 12, sizeof(zero));
  if (std::memcmp(bytes.data(), kObjectMagic.data(), kObjectMagic.size()) != 0 ||
      version != kObjectVersion || zero != 0) {
    return std::nullopt;
  }
  RecordSalt salt;
  std::memcpy(salt.data(), bytes.data() + 16, salt.size());
  AesTag tag;
  std::memcpy(tag.data(), bytes.data() + kObjectHead + kObjectSealed, tag.size());
  AesKey key = ObjectKey(key_, salt);
  std::byte plain[kObjectSealed];
  const bool is_unsealed =
      AesGcmUnseal(key, 0, BytesOf(std::string_view(Authenticated(bytes, name))),
                   bytes.subspan(kObjectHead, kObjectSealed), plain, tag);
  OPENSSL_cleanse(key.data(), key.size());
  std::optional<OwnerEpoch> epoch;
  if (is_unsealed) {
    epoch.emplace();
    std::memcpy(&epoch->epoch, plain, 8);
    std::memcpy(epoch->random.data(), plain + 8, epoch->random.size());
    if (epoch->epoch == 0) epoch.reset();
  }
  OPENSSL_cleanse(plain, sizeof(plain));
  return epoch;
}

std::string RemoteName(std::string_view owner_name, const AesKey& random, const RecordName& name) {
  std::array<std::byte, 36> bytes;
  std::memcpy(bytes.data(), name.key.data(), name.key.size());
  std::memcpy(bytes.data() + 32, &name.layer_group, 2);
  std::memcpy(bytes.data() + 34, &name.part, 2);
  static constexpr AesKey kNoKey{};
  const HmacKey key(FaultActive(Fault::kUnkeyedName) ? kNoKey : random);
  const Digest digest = key.Of(BytesOf(std::string_view("kvasir remote name")), bytes);
  return std::string(owner_name) + "/" + ToHex(digest);
}

}  // namespace kvasir
