// The low-level SHA256_* calls are deprecated in OpenSSL 3, and but only their state can be
// copied without an allocation: EVP_MD_CTX_copy takes longer than the hash of a block's tokens.
#define OPENSSL_API_COMPAT 10100
#include "base/digest.h"

#include <openssl/sha.h>

#include <cstring>

#include "base/check.h"

namespace kvasir {
namespace {

static_assert(sizeof(SHA256_CTX) <= 128);
SHA256_CTX* Ctx(unsigned char* bytes) { return reinterpret_cast<SHA256_CTX*>(bytes); }

}  // namespace

Sha256::Sha256() { KV_CHECK(SHA256_Init(Ctx(state_.bytes)) == 1); }

Sha256& Sha256::Update(std::span<const std::byte> bytes) {
  SHA256_Update(Ctx(state_.bytes), bytes.data(), bytes.size());
  return *this;
}
Sha256& Sha256::Update(std::string_view bytes) { return Update(std::as_bytes(std::span(bytes))); }
Sha256& Sha256::UpdateU64(uint64_t value) {
  std::byte bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = std::byte(value >> (8 * i));
  return Update(bytes);
}
Digest Sha256::Finish() {
  Digest digest;
  SHA256_Final(digest.data(), Ctx(state_.bytes));
  return digest;
}

Digest Sha256Of(std::string_view bytes) { return Sha256().Update(bytes).Finish(); }

HmacKey::HmacKey(std::span<const uint8_t> key) {
  unsigned char block[64] = {};
  if (key.size() > sizeof(block)) {
    SHA256(key.data(), key.size(), block);
  } else if (!key.empty()) {
    std::memcpy(block, key.data(), key.size());
  }
  for (auto& b : block) b ^= 0x36;
  SHA256_Init(Ctx(inner_));
  SHA256_Update(Ctx(inner_), block, sizeof(block));
  for (auto& b : block) b ^= 0x36 ^ 0x5c;
  SHA256_Init(Ctx(outer_));
  SHA256_Update(Ctx(outer_), block, sizeof(block));
}

Digest HmacKey::Of(std::span<const std::byte> first, std::span<const std::byte> second) const {
  SHA256_CTX ctx;
  std::memcpy(&ctx, inner_, sizeof(ctx));
  SHA256_Update(&ctx, first.data(), first.size());
  SHA256_Update(&ctx, second.data(), second.size());
  Digest digest;
  SHA256_Final(digest.data(), &ctx);
  std::memcpy(&ctx, outer_, sizeof(ctx));
  SHA256_Update(&ctx, digest.data(), digest.size());
  SHA256_Final(digest.data(), &ctx);
  return digest;
}

}  // namespace kvasir
