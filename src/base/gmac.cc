#include "base/gmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <memory>
#include <new>

#include "base/check.h"
#include "base/digest.h"

namespace kvasir {
namespace {

using Context = std::unique_ptr<EVP_CIPHER_CTX, void (*)(EVP_CIPHER_CTX*)>;

Context NewContext() {
  // Without memory for its context OpenSSL would crash in the next calls.
  if (OSSL_LIB_CTX_get0_global_default() == nullptr) throw std::bad_alloc();
  Context context(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  if (context == nullptr) throw std::bad_alloc();
  return context;
}

// Returns AES-256 of 16 zeros.
std::array<uint8_t, 16> HashKey(const std::array<uint8_t, 32>& key) {
  const Context context = NewContext();
  const uint8_t zeros[16] = {};
  std::array<uint8_t, 16> hash_key;
  int length = 0;
  const bool done =
      EVP_EncryptInit_ex(context.get(), EVP_aes_256_ecb(), nullptr, key.data(), nullptr) == 1 &&
      EVP_CIPHER_CTX_set_padding(context.get(), 0) == 1 &&
      EVP_EncryptUpdate(context.get(), hash_key.data(), &length, zeros, sizeof(zeros)) == 1 &&
      length == 16;
  if (!done) throw std::bad_alloc();  // OpenSSL fails here only without memory
  return hash_key;
}

const GhashKernels* KernelsOf(GmacPath path) {
#if defined(__x86_64__)
  if (path == GmacPath::kPclmul) return &pclmul::kGhash;
  if (path == GmacPath::kVpclmul256) return &vpclmul256::kGhash;
  if (path == GmacPath::kVpclmul512) return &vpclmul512::kGhash;
#endif
  KV_CHECK(path == GmacPath::kOpenssl);
  return nullptr;
}

}  // namespace

std::string_view NameOf(GmacPath path) {
  constexpr std::string_view kNames[] = {"openssl", "pclmul", "vpclmul256", "vpclmul512"};
  return kNames[static_cast<size_t>(path)];
}

std::vector<GmacPath> SupportedGmacPaths() {
  std::vector<GmacPath> paths{GmacPath::kOpenssl};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("pclmul")) paths.push_back(GmacPath::kPclmul);
  if (__builtin_cpu_supports("vpclmulqdq")) {
    paths.push_back(GmacPath::kVpclmul256);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      paths.push_back(GmacPath::kVpclmul512);
    }
  }
#endif
  return paths;
}

Gmac::Gmac(const std::array<uint8_t, 32>& key, GmacPath path) : key_(key), ghash_(KernelsOf(path)) {
  if (ghash_ != nullptr) ghash_->expand(HashKey(key_).data(), &powers_);
}

GmacTag Gmac::Of(const Nonce& nonce, std::span<const std::byte> bytes) const {
  KV_CHECK(bytes.size() < (uint64_t{1} << 31));
  if (ghash_ == nullptr) return OpensslTag(nonce, bytes);
  // The hash of an empty message is 0, so its tag is the mask E(J0) of this nonce.
  GmacTag tag = OpensslTag(nonce, {});
  uint8_t hash[16];
  ghash_->hash(powers_, bytes.data(), bytes.size(), hash);
  for (size_t i = 0; i < tag.size(); ++i) tag[i] ^= hash[i];
  return tag;
}

GmacTag Gmac::OpensslTag(const Nonce& nonce, std::span<const std::byte> bytes) const {
  const Context context = NewContext();
  int length = 0;
  GmacTag tag;
  uint8_t none[16];
  const bool done =
      EVP_EncryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, key_.data(), nonce.data()) ==
          1 &&
      EVP_EncryptUpdate(context.get(), nullptr, &length,
                        reinterpret_cast<const uint8_t*>(bytes.data()),
                        static_cast<int>(bytes.size())) == 1 &&
      EVP_EncryptFinal_ex(context.get(), none, &length) == 1 &&
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, tag.size(), tag.data()) == 1;
  if (!done) throw std::bad_alloc();
  return tag;
}

GmacKey::GmacKey(const Secret& secret, std::string_view purpose, std::span<const uint8_t> salt,
                 GmacPath path)
    : gmac_(HmacKey(secret).Of(std::as_bytes(std::span(purpose)), std::as_bytes(salt)), path) {}

GmacTag GmacKey::Of(uint64_t number, std::span<const std::byte> bytes) const {
  Gmac::Nonce nonce{};
  for (size_t i = 0; i < 8; ++i) nonce[i] = static_cast<uint8_t>(number >> (8 * i));
  return gmac_.Of(nonce, bytes);
}

bool SameTag(const GmacTag& a, const GmacTag& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace kvasir
