#include "base/gmac.h"

#include <gtest/gtest.h>

#include <string>

#include "base/bytes_for_test.h"
#include "base/hex.h"
#include "base/random.h"

namespace kvasir {
namespace {

TEST(Gmac, IsWhatPythonsCryptographyComputes) {
  // AESGCM(hmac.digest(bytes(range(32)), b"purpose" + b"salt", "sha256")).encrypt(
  //     (5).to_bytes(8, "little") + bytes(4), b"", b"some bytes")
  Secret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(i);
  const std::array<uint8_t, 4> salt = {'s', 'a', 'l', 't'};
  for (const GmacPath path : SupportedGmacPaths()) {
    const GmacKey key(secret, "purpose", salt, path);
    EXPECT_EQ(ToHex(key.Of(5, BytesOf("some bytes"))), "aca150b778c58ec47d4352941de0e756")
        << NameOf(path);
  }
}

TEST(Gmac, EveryPartDecides) {
  const Secret secret{}, other{1};
  const std::array<uint8_t, 2> salt = {1, 2}, pepper = {1, 3};
  const GmacTag tag = GmacKey(secret, "a", salt).Of(0, BytesOf("x"));
  EXPECT_TRUE(SameTag(tag, GmacKey(secret, "a", salt).Of(0, BytesOf("x"))));
  EXPECT_FALSE(SameTag(tag, GmacKey(other, "a", salt).Of(0, BytesOf("x"))));
  EXPECT_FALSE(SameTag(tag, GmacKey(secret, "b", salt).Of(0, BytesOf("x"))));
  EXPECT_FALSE(SameTag(tag, GmacKey(secret, "a", pepper).Of(0, BytesOf("x"))));
  EXPECT_FALSE(SameTag(tag, GmacKey(secret, "a", salt).Of(1, BytesOf("x"))));
  EXPECT_FALSE(SameTag(tag, GmacKey(secret, "a", salt).Of(0, BytesOf("y"))));
  EXPECT_FALSE(SameTag(tag, GmacKey(secret, "a", salt).Of(0, BytesOf(""))));
}

// Lengths up to eight groups of the widest path, at every offset within a cache line.
TEST(Gmac, EveryPathOfThisCpuGivesOpensslsTags) {
  const std::vector<GmacPath> paths = SupportedGmacPaths();
  ASSERT_EQ(paths.front(), GmacPath::kOpenssl);
  for (const uint64_t seed : {1, 2, 3, 4}) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Secret secret;
    for (uint8_t& byte : secret) byte = static_cast<uint8_t>(random.Bits());
    std::vector<std::byte> bytes(4096 + 64);
    for (std::byte& byte : bytes) byte = std::byte(random.Bits());
    std::vector<GmacKey> keys;
    for (const GmacPath path : paths) keys.emplace_back(secret, "p", std::span<uint8_t>(), path);
    for (size_t i = 0; i < 1500; ++i) {
      // All lengths of the first blocks, the edges of groups, then any.
      const size_t edge = 512 * (1 + i % 8) - 1 + i / 8 % 3;
      const size_t size = i < 600   ? i
                          : i < 700 ? std::min<size_t>(edge, 4096)
                                    : random.Bits() % 4097;
      const auto message = std::span(bytes).subspan(random.Bits() % 64, size);
      const uint64_t number = random.Bits();
      const GmacTag want = keys.front().Of(number, message);
      for (size_t p = 1; p < paths.size(); ++p) {
        ASSERT_EQ(ToHex(keys[p].Of(number, message)), ToHex(want)) << NameOf(paths[p]) << size;
      }
    }
  }
}

// Extreme cases of the reduction: all ones, and keys with and without their top bits.
TEST(Gmac, EveryPathAgreesOnExtremeBytesAndALongMessage) {
  for (const int fill : {0x00, 0xff, 0x80, 0x01}) {
    const std::vector<std::byte> bytes((1 << 20) + 13, std::byte(fill));
    for (uint8_t key = 0; key < 16; ++key) {
      const Secret secret{key};
      const GmacTag want = GmacKey(secret, "p", {}, GmacPath::kOpenssl).Of(key, bytes);
      for (const GmacPath path : SupportedGmacPaths()) {
        ASSERT_EQ(ToHex(GmacKey(secret, "p", {}, path).Of(key, bytes)), ToHex(want))
            << NameOf(path);
      }
    }
  }
}

}  // namespace
}  // namespace kvasir
