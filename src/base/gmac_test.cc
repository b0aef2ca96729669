#include "base/gmac.h"

#include <gtest/gtest.h>

#include <string>

#include "base/digest.h"

namespace kvasir {
namespace {

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(Gmac, IsWhatPythonsCryptographyComputes) {
  // AESGCM(hmac.digest(bytes(range(32)), b"purpose" + b"salt", "sha256")).encrypt(
  //     (5).to_bytes(8, "little") + bytes(4), b"", b"some bytes")
  Secret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(i);
  const std::array<uint8_t, 4> salt = {'s', 'a', 'l', 't'};
  const GmacKey key(secret, "purpose", salt);
  EXPECT_EQ(ToHex(key.Of(5, Bytes("some bytes"))), "aca150b778c58ec47d4352941de0e756");
}

TEST(Gmac, EveryPartDecides) {
  const Secret secret{}, other{1};
  const std::array<uint8_t, 2> salt = {1, 2}, pepper = {1, 3};
  const GmacTag tag = GmacKey(secret, "a", salt).Of(0, Bytes("x"));
  EXPECT_TRUE(SameTag(tag, GmacKey(secret, "a", salt).Of(0, Bytes("x"))));
  EXPECT_FALSE(SameTag(tag, GmacKey(other, "a", salt).Of(0, Bytes("x"))));
  EXPECT_FALSE(SameTag(tag, GmacKey(secret, "b", salt).Of(0, Bytes("x"))));
  EXPECT_FALSE(SameTag(tag, GmacKey(secret, "a", pepper).Of(0, Bytes("x"))));
  EXPECT_FALSE(SameTag(tag, GmacKey(secret, "a", salt).Of(1, Bytes("x"))));
  EXPECT_FALSE(SameTag(tag, GmacKey(secret, "a", salt).Of(0, Bytes("y"))));
  EXPECT_FALSE(SameTag(tag, GmacKey(secret, "a", salt).Of(0, Bytes(""))));
}

}  // namespace
}  // namespace kvasir
