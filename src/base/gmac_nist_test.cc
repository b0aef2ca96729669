// NIST's vectors (CAVP, tests/data/README.md), for each hash implementation on this CPU and for
// OpenSSL's GCM.
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/gmac.h"
#include "base/hex.h"
#include "source_paths.h"

namespace kvasir {
namespace {

using ByteVector = std::vector<uint8_t>;

ByteVector FromHex(const std::string& hex) {
  ByteVector bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

struct Vector {
  ByteVector key, nonce, message;
  std::string tag;
};

// Reads the file's lines: key, IV, AAD (- if empty) and tag.
std::vector<Vector> Vectors(int key_bits) {
  const std::string path =
      KVASIR_SOURCE_DIR "/tests/data/nist_gmac_" + std::to_string(key_bits) + ".txt";
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::vector<Vector> vectors;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream fields(line);
    std::string key, nonce, message, tag;
    EXPECT_TRUE(fields >> key >> nonce >> message >> tag) << line;
    if (message == "-") message.clear();
    vectors.push_back({FromHex(key), FromHex(nonce), FromHex(message), tag});
    EXPECT_EQ(vectors.back().key.size(), static_cast<size_t>(key_bits / 8)) << line;
    EXPECT_EQ(vectors.back().nonce.size(), sizeof(Gmac::Nonce)) << line;
    EXPECT_EQ(vectors.back().tag.size(), 2 * sizeof(GmacTag)) << line;
  }
  EXPECT_EQ(vectors.size(), 75u);
  return vectors;
}

using Context = std::unique_ptr<EVP_CIPHER_CTX, void (*)(EVP_CIPHER_CTX*)>;

GmacTag OpensslGmac(const Vector& v) {
  const Context context(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  const EVP_CIPHER* cipher = v.key.size() == 16 ? EVP_aes_128_gcm() : EVP_aes_256_gcm();
  GmacTag tag{};
  uint8_t none[16];
  int length = 0;
  EXPECT_EQ(EVP_EncryptInit_ex(context.get(), cipher, nullptr, v.key.data(), v.nonce.data()), 1);
  EXPECT_EQ(EVP_EncryptUpdate(context.get(), nullptr, &length, v.message.data(),
                              static_cast<int>(v.message.size())),
            1);
  EXPECT_EQ(EVP_EncryptFinal_ex(context.get(), none, &length), 1);
  EXPECT_EQ(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, tag.size(), tag.data()), 1);
  return tag;
}

GmacTag AesBlock(const ByteVector& key, const GmacTag& block) {
  const Context context(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  const EVP_CIPHER* cipher = key.size() == 16 ? EVP_aes_128_ecb() : EVP_aes_256_ecb();
  GmacTag out{};
  int length = 0;
  EXPECT_EQ(EVP_EncryptInit_ex(context.get(), cipher, nullptr, key.data(), nullptr), 1);
  EXPECT_EQ(EVP_CIPHER_CTX_set_padding(context.get(), 0), 1);
  EXPECT_EQ(EVP_EncryptUpdate(context.get(), out.data(), &length, block.data(), 16), 1);
  return out;
}

// Computes SP 800-38D, 6.4 and 7.1, around one target's hash: E(J0) xor GHASH.
GmacTag TagBy(const GhashKernels& ghash, const Vector& v) {
  GhashPowers powers;
  ghash.expand(AesBlock(v.key, {}).data(), &powers);
  GmacTag first{};  // J0: the nonce, and 1 in 32 bits
  std::ranges::copy(v.nonce, first.begin());
  first.back() = 1;
  GmacTag tag = AesBlock(v.key, first), hash;
  ghash.hash(powers, std::as_bytes(std::span(v.message)).data(), v.message.size(), hash.data());
  for (size_t i = 0; i < tag.size(); ++i) tag[i] ^= hash[i];
  return tag;
}

TEST(GmacNist, EveryPathHasTheTagsOfThe256BitVectors) {
  for (const Vector& v : Vectors(256)) {
    EXPECT_EQ(ToHex(OpensslGmac(v)), v.tag);
    std::array<uint8_t, 32> key;
    Gmac::Nonce nonce;
    std::ranges::copy(v.key, key.begin());
    std::ranges::copy(v.nonce, nonce.begin());
    for (const GmacPath path : SupportedGmacPaths()) {
      const Gmac gmac(key, path);
      EXPECT_EQ(ToHex(gmac.Of(nonce, std::as_bytes(std::span(v.message)))), v.tag) << NameOf(path);
    }
  }
}

// Keys of 128 bits test only the hash: GmacKey does not have them.
TEST(GmacNist, EveryTargetsHashMakesTheTagsOfBothKeySizes) {
  for (const int key_bits : {128, 256}) {
    for (const Vector& v : Vectors(key_bits)) {
      EXPECT_EQ(ToHex(OpensslGmac(v)), v.tag);
#if defined(__x86_64__)
      for (const GmacPath path : SupportedGmacPaths()) {
        if (path == GmacPath::kOpenssl) continue;
        const GhashKernels& ghash = path == GmacPath::kPclmul       ? pclmul::kGhash
                                    : path == GmacPath::kVpclmul256 ? vpclmul256::kGhash
                                                                    : vpclmul512::kGhash;
        EXPECT_EQ(ToHex(TagBy(ghash, v)), v.tag) << NameOf(path) << " " << key_bits;
      }
#endif
    }
  }
}

}  // namespace
}  // namespace kvasir
