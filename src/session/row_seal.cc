// A row's sealed bytes (also in docs/formats/sessions.md):
//   sealed := salt[24]  AES-256-GCM(bytes)  tag[16]
// nonce 0, under HMAC-SHA-256(owner's key, "kvasir session row" || salt). Authenticated with it:
// the key's namespace_id[16], the number, little endian, and the id.
#include "session/row_seal.h"

#include <openssl/crypto.h>

#include <cstring>

#include "base/secret.h"

namespace kvasir {
namespace {

constexpr std::string_view kRowPurpose = "kvasir session row";
constexpr size_t kSaltBytes = sizeof(RecordSalt);

struct RowKey {
  RowKey(const OwnerKey& owner, std::span<const std::byte, kSaltBytes> salt)
      : key(HmacKey(owner.key).Of(std::as_bytes(std::span(kRowPurpose)), salt)) {}
  ~RowKey() { OPENSSL_cleanse(key.data(), key.size()); }
  AesKey key;
};

std::vector<std::byte> BoundTo(const OwnerKey& owner, std::string_view id, uint64_t number) {
  std::vector<std::byte> bytes(sizeof(OwnerTag) + sizeof(number) + id.size());
  std::memcpy(bytes.data(), owner.namespace_id.data(), sizeof(OwnerTag));
  std::memcpy(bytes.data() + sizeof(OwnerTag), &number, sizeof(number));
  std::memcpy(bytes.data() + sizeof(OwnerTag) + sizeof(number), id.data(), id.size());
  return bytes;
}

}  // namespace

std::optional<std::vector<std::byte>> SealRow(const OwnerKey& owner, std::string_view id,
                                              uint64_t number, const RecordSalt& salt,
                                              std::span<const std::byte> plain) {
  std::vector<std::byte> sealed(plain.size() + kRowSealBytes);
  std::memcpy(sealed.data(), salt.data(), salt.size());
  const RowKey key(owner, std::span<const std::byte>(sealed).first<kSaltBytes>());
  AesTag tag;
  if (!AesGcmSeal(key.key, 0, BoundTo(owner, id, number), plain,
                  std::span(sealed).subspan(kSaltBytes, plain.size()), &tag)) {
    return std::nullopt;
  }
  std::memcpy(sealed.data() + sealed.size() - tag.size(), tag.data(), tag.size());
  return sealed;
}

std::optional<std::vector<std::byte>> UnsealRow(const OwnerKey& owner, std::string_view id,
                                                uint64_t number,
                                                std::span<const std::byte> sealed) {
  if (sealed.size() < kRowSealBytes) return std::nullopt;
  const RowKey key(owner, sealed.first<kSaltBytes>());
  AesTag tag;
  std::memcpy(tag.data(), sealed.data() + sealed.size() - tag.size(), tag.size());
  std::vector<std::byte> plain(sealed.size() - kRowSealBytes);
  const auto bytes = sealed.subspan(kSaltBytes, plain.size());
  if (!AesGcmUnseal(key.key, 0, BoundTo(owner, id, number), bytes, plain, tag)) return std::nullopt;
  return plain;
}

}  // namespace kvasir
