#include "base/gmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <memory>

#include "base/check.h"
#include "base/digest.h"

namespace kvasir {

GmacKey::GmacKey(const Secret& secret, std::string_view purpose, std::span<const uint8_t> salt)
    : key_(HmacKey(secret).Of(std::as_bytes(std::span(purpose)), std::as_bytes(salt))) {}

GmacTag GmacKey::Of(uint64_t number, std::span<const std::byte> bytes) const {
  const std::unique_ptr<EVP_CIPHER_CTX, void (*)(EVP_CIPHER_CTX*)> context(EVP_CIPHER_CTX_new(),
                                                                           &EVP_CIPHER_CTX_free);
  uint8_t nonce[12] = {};
  for (int i = 0; i < 8; ++i) nonce[i] = static_cast<uint8_t>(number >> (8 * i));
  int length = 0;
  GmacTag tag;
  KV_CHECK(bytes.size() < (uint64_t{1} << 31));
  KV_CHECK(context != nullptr &&
           EVP_EncryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, key_.data(), nonce) == 1);
  KV_CHECK(EVP_EncryptUpdate(context.get(), nullptr, &length,
                             reinterpret_cast<const uint8_t*>(bytes.data()),
                             static_cast<int>(bytes.size())) == 1);
  uint8_t none[16];
  KV_CHECK(EVP_EncryptFinal_ex(context.get(), none, &length) == 1);
  KV_CHECK(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, tag.size(), tag.data()) == 1);
  return tag;
}

bool SameTag(const GmacTag& a, const GmacTag& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace kvasir
