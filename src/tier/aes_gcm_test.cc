#include "tier/aes_gcm.h"

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/hex.h"

namespace kvasir {
namespace {

using PlainBytes = std::vector<std::byte>;

PlainBytes BytesOfText(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string HexOf(const PlainBytes& bytes) {
  return ToHex({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

// One message, sealed.
struct SealedText {
  explicit SealedText(const std::string& text, uint64_t of_number = 7)
      : number(of_number), plain(BytesOfText(text)), sealed(plain.size()) {
    for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(i);
    EXPECT_TRUE(AesGcmSeal(key, number, beside, plain, sealed, &tag));
  }
  bool Unseals() const {
    PlainBytes out(sealed.size());
    return AesGcmUnseal(key, number, beside, sealed, out, tag) && out == plain;
  }

  AesKey key{};
  uint64_t number;
  PlainBytes beside = BytesOfText("beside"), plain, sealed;
  AesTag tag{};
};

// Test case 14 of "The Galois/Counter Mode of Operation" (McGrew, Viega): all zeros.
TEST(AesGcm, EqualsThePublishedAnswer) {
  const AesKey key{};
  const PlainBytes plain(16);
  PlainBytes sealed(16);
  AesTag tag;
  ASSERT_TRUE(AesGcmSeal(key, 0, {}, plain, sealed, &tag));
  EXPECT_EQ(HexOf(sealed), "cea7403d4d606b6e074ec5d3baf39d18");
  EXPECT_EQ(ToHex(tag), "d0d1c8a799996bf0265b98b5d48ab919");
}

// Compares with Python's `cryptography`: AESGCM(bytes(range(32))) with the nonce
// 0x0123456789abcdef.to_bytes(8, "little") + bytes(4).
TEST(AesGcm, TheNumberIsTheNonceInLittleEndian) {
  const SealedText one("a block of bytes", 0x0123456789abcdef);
  EXPECT_EQ(HexOf(one.sealed), "70938a3dc70aab6bc7ddb009fa0f191c");
  EXPECT_EQ(ToHex(one.tag), "6df96f91548a9ede893de764b807137e");
}

TEST(AesGcm, RefusesWhatDiffersInOneBitOrTheNumber) {
  ASSERT_TRUE(SealedText("some text").Unseals());
  const auto flip = [](auto& bytes, size_t bit) {
    auto& byte = bytes[bit / 8 % bytes.size()];
    byte = static_cast<std::decay_t<decltype(byte)>>(static_cast<uint8_t>(byte) ^ 1u << bit % 8);
  };
  for (size_t bit = 0; bit < 256; ++bit) {
    for (int part = 0; part < 4; ++part) {
      SealedText changed("some text");
      if (part == 0) flip(changed.key, bit);
      if (part == 1) flip(changed.beside, bit);
      if (part == 2) flip(changed.sealed, bit);
      if (part == 3) flip(changed.tag, bit);
      EXPECT_FALSE(changed.Unseals()) << "part " << part << " bit " << bit;
    }
  }
  SealedText changed("some text");
  ++changed.number;
  EXPECT_FALSE(changed.Unseals());
}

TEST(AesGcm, UnsealsIntoTwoPlacesAndInPlace) {
  const SealedText one("some text that goes to two places");
  for (size_t cut = 0; cut <= one.plain.size(); ++cut) {
    PlainBytes first(cut), second(one.plain.size() - cut);
    ASSERT_TRUE(AesGcmUnseal(one.key, one.number, one.beside, one.sealed, first, second, one.tag));
    first.insert(first.end(), second.begin(), second.end());
    EXPECT_EQ(first, one.plain) << cut;
  }
  PlainBytes bytes = one.plain;
  AesTag tag;
  ASSERT_TRUE(AesGcmSeal(one.key, one.number, one.beside, bytes, bytes, &tag));
  EXPECT_EQ(bytes, one.sealed);
  EXPECT_EQ(tag, one.tag);
  ASSERT_TRUE(AesGcmUnseal(one.key, one.number, one.beside, bytes, bytes, tag));
  EXPECT_EQ(bytes, one.plain);
}

TEST(AesGcm, SealsNothing) {
  const SealedText nothing("");
  EXPECT_TRUE(nothing.Unseals());
  EXPECT_NE(nothing.tag, AesTag{}) << "what stands beside it is sealed";
}

TEST(WipedKey, WipesItself) {
  AesKey key;
  key.fill(7);
  alignas(WipedKey) unsigned char memory[sizeof(WipedKey)];
  std::destroy_at(new (memory) WipedKey(key));
  // Read as a volatile: the compiler may not assume what is left of an object that has ended.
  const volatile unsigned char* left = memory;
  for (size_t i = 0; i < sizeof(memory); ++i) EXPECT_EQ(int{left[i]}, 0) << i;
}

}  // namespace
}  // namespace kvasir
