#include "tier/aes_gcm.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <memory>

#include "base/check.h"

namespace kvasir {
namespace {

enum class Direction : uint8_t { kUnseal, kSeal };

// A context that keeps its cipher: OpenSSL 3 looks the cipher up, with allocations, each time that
// it is named.
class Context {
 public:
  explicit Context(Direction direction) {
    if (OSSL_LIB_CTX_get0_global_default() == nullptr) return;  // no memory: it would crash later
    context_.reset(EVP_CIPHER_CTX_new());
    if (context_ != nullptr &&
        EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, nullptr, nullptr,
                          direction == Direction::kSeal ? 1 : 0) != 1) {
      context_.reset();
    }
  }
  EVP_CIPHER_CTX* get() const { return context_.get(); }

 private:
  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };
  std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
};

// Returns this thread's context; makes it anew where memory was refused before.
EVP_CIPHER_CTX* ContextFor(Direction direction) {
  thread_local Context seal(Direction::kSeal), unseal(Direction::kUnseal);
  Context& context = direction == Direction::kSeal ? seal : unseal;
  if (context.get() == nullptr) context = Context(direction);
  return context.get();
}

const unsigned char* In(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

// Does everything up to the tag.
bool Run(EVP_CIPHER_CTX* context, const AesKey& key, uint64_t number,
         std::span<const std::byte> authenticated, std::span<const std::byte> in,
         std::span<std::byte> out) {
  KV_CHECK(in.size() == out.size() && in.size() < (uint64_t{1} << 31));
  unsigned char nonce[12] = {};
  for (int i = 0; i < 8; ++i) nonce[i] = static_cast<unsigned char>(number >> (8 * i));
  int length = 0;
  if (context == nullptr ||
      EVP_CipherInit_ex(context, nullptr, nullptr, key.data(), nonce, -1) != 1) {
    return false;
  }
  if (!authenticated.empty() && EVP_CipherUpdate(context, nullptr, &length, In(authenticated),
                                                 static_cast<int>(authenticated.size())) != 1) {
    return false;
  }
  return in.empty() || EVP_CipherUpdate(context, reinterpret_cast<unsigned char*>(out.data()),
                                        &length, In(in), static_cast<int>(in.size())) == 1;
}

}  // namespace

bool AesGcmSeal(const AesKey& key, uint64_t number, std::span<const std::byte> authenticated,
                std::span<const std::byte> plain, std::span<std::byte> out, AesTag* tag) {
  EVP_CIPHER_CTX* context = ContextFor(Direction::kSeal);
  unsigned char rest[16];
  int length = 0;
  return Run(context, key, number, authenticated, plain, out) &&
         EVP_CipherFinal_ex(context, rest, &length) == 1 &&
         EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, 16, tag->data()) == 1;
}

bool AesGcmUnseal(const AesKey& key, uint64_t number, std::span<const std::byte> authenticated,
                  std::span<const std::byte> sealed, std::span<std::byte> out, const AesTag& tag) {
  return AesGcmUnseal(key, number, authenticated, sealed, out, {}, tag);
}

bool AesGcmUnseal(const AesKey& key, uint64_t number, std::span<const std::byte> authenticated,
                  std::span<const std::byte> sealed, std::span<std::byte> first,
                  std::span<std::byte> second, const AesTag& tag) {
  KV_CHECK(sealed.size() == first.size() + second.size());
  EVP_CIPHER_CTX* context = ContextFor(Direction::kUnseal);
  unsigned char rest[16];
  int length = 0;
  if (!Run(context, key, number, authenticated, sealed.first(first.size()), first)) return false;
  if (!second.empty() &&
      EVP_CipherUpdate(context, reinterpret_cast<unsigned char*>(second.data()), &length,
                       In(sealed.subspan(first.size())), static_cast<int>(second.size())) != 1) {
    return false;
  }
  return EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, 16,
                             const_cast<unsigned char*>(tag.data())) == 1 &&
         EVP_CipherFinal_ex(context, rest, &length) == 1;
}

WipedKey::~WipedKey() { OPENSSL_cleanse(data(), size()); }

}  // namespace kvasir
