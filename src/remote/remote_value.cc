// A value, little endian (also in docs/formats/remote.md):
//   value  := head  sealed  tag[16]
//   head   := "KVREMOTE"  u8 version  u8 codec  u16 zero  u32 sealed bytes  salt[24]
//   sealed := facts  tokens[4 * block_tokens]  payload, or payload coded by PlaneCodec and zeros
//   facts  := key[32]  u16 layer group  u16 part  parent[32]  owner[32]  identity[32]
//             u32 block_tokens  u32 payload bytes  payload's tag[16]  u32 zero
// by AES-256-GCM, nonce 0, under HMAC-SHA-256(the epoch's random bytes, "kvasir remote value" ||
// salt). Authenticated with it: the head, and the value's name in the store. The payload's tag is a
// GMAC of the decoded payload by the same key, nonce 1. A value whose payload is coded has a
// multiple of 4,096 bytes.
#include "remote/remote_value.h"

#include <openssl/crypto.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/fault.h"

namespace kvasir {
namespace {

constexpr std::string_view kValueMagic = "KVREMOTE";
constexpr uint8_t kValueVersion = 1;
constexpr size_t kPayloadTagAt = 140, kMostName = 200;
constexpr size_t kFactsToTag = kPayloadTagAt;  // what is compared of the facts

// What is authenticated beside the sealed bytes.
class Beside {
 public:
  Beside(std::span<const std::byte> value, std::string_view name) : size_(40 + name.size()) {
    KV_CHECK(name.size() <= kMostName);
    std::memcpy(bytes_, value.data(), kValueHeadBytes);
    std::memcpy(bytes_ + kValueHeadBytes, name.data(), name.size());
  }
  std::span<const std::byte> bytes() const { return {bytes_, size_}; }

 private:
  std::byte bytes_[kValueHeadBytes + kMostName];
  size_t size_;
};

using FactsBytes = std::array<std::byte, kValueFactsBytes>;

FactsBytes FactsOf(const RecordShape& shape, const Digest& identity, const RecordFacts& facts) {
  FactsBytes out{};
  std::byte* at = out.data();
  const auto put = [&](const void* bytes, size_t size) {
    std::memcpy(at, bytes, size);
    at += size;
  };
  put(facts.name.key.data(), 32);
  put(&facts.name.layer_group, 2);
  put(&facts.name.part, 2);
  put(facts.parent.data(), 32);
  put(facts.owner.data(), 32);
  put(identity.data(), 32);
  const auto payload_bytes = static_cast<uint32_t>(shape.payload_bytes);
  put(&shape.block_tokens, 4);
  put(&payload_bytes, 4);
  return out;
}

bool TagOf(const AesKey& key, std::span<const std::byte> payload, AesTag* tag) {
  return AesGcmSeal(key, 1, payload, {}, {}, tag);
}

// Writes codec and length into a value's head.
void WriteCodec(ValueCodec codec, std::span<std::byte> value) {
  value[9] = std::byte{static_cast<uint8_t>(codec)};
  const auto sealed = static_cast<uint32_t>(value.size() - kValueHeadBytes - sizeof(AesTag));
  std::memcpy(value.data() + 12, &sealed, 4);
}

// Puts the payload into a value. Returns the bytes that are to be sealed and stored.
std::span<std::byte> PutPayload(const RecordShape& shape, std::span<const std::byte> payload,
                                std::span<std::byte> value, PlaneCodecs* codecs) {
  const uint64_t at = ValuePayloadAt(shape), most = MostCodedBytes(shape);
  if (codecs != nullptr && most > at + sizeof(AesTag)) {
    const auto coded = codecs->Encode(payload, value.subspan(at, most - at - sizeof(AesTag)));
    if (coded) {
      const uint64_t bytes = RoundUp(at + *coded + sizeof(AesTag), kCodedPageBytes);
      OPENSSL_cleanse(value.data() + at + *coded, value.size() - at - *coded);
      WriteCodec(ValueCodec::kPlanes, value.first(bytes));
      return value.first(bytes);
    }
  }
  std::memcpy(value.data() + at, payload.data(), payload.size());
  return value;
}

// Returns the codec by which a value may be unsealed. Absent: its head, or its length, is of no
// value of the model.
std::optional<ValueCodec> CodecOf(const RecordShape& shape, std::span<const std::byte> value) {
  if (!IsValueLength(shape, value.size())) return std::nullopt;
  uint16_t zero;
  uint32_t sealed_bytes;
  std::memcpy(&zero, value.data() + 10, 2);
  std::memcpy(&sealed_bytes, value.data() + 12, 4);
  const auto codec = static_cast<ValueCodec>(value[9]);
  const bool is_raw = value.size() == RawValueBytes(shape);
  if (std::memcmp(value.data(), kValueMagic.data(), kValueMagic.size()) != 0 ||
      value[8] != std::byte{kValueVersion} || zero != 0 ||
      codec != (is_raw ? ValueCodec::kRaw : ValueCodec::kPlanes) ||
      sealed_bytes != value.size() - kValueHeadBytes - sizeof(AesTag)) {
    return std::nullopt;
  }
  return codec;
}

}  // namespace

AesKey ValueKey(const AesKey& random, const RecordSalt& salt) {
  constexpr std::string_view kPurpose = "kvasir remote value";
  return HmacKey(random).Of(std::as_bytes(std::span(kPurpose)), std::as_bytes(std::span(salt)));
}

void WriteValueFacts(const RecordShape& shape, const Digest& identity, const RecordFacts& facts,
                     const RecordSalt& salt, std::span<std::byte> value) {
  KV_CHECK(facts.tokens.size() == shape.block_tokens && value.size() == RawValueBytes(shape));
  std::memset(value.data(), 0, kValueHeadBytes);
  std::memcpy(value.data(), kValueMagic.data(), kValueMagic.size());
  value[8] = std::byte{kValueVersion};
  WriteCodec(ValueCodec::kRaw, value);
  std::memcpy(value.data() + 16, salt.data(), salt.size());
  const FactsBytes bytes = FactsOf(shape, identity, facts);
  std::memcpy(value.data() + kValueHeadBytes, bytes.data(), bytes.size());
  std::memcpy(value.data() + kValueHeadBytes + kValueFactsBytes, facts.tokens.data(),
              facts.tokens.size_bytes());
}

std::optional<uint64_t> SealValue(const ValuePlace& place, std::span<const std::byte> payload,
                                  std::span<std::byte> value, PlaneCodecs* codecs) {
  KV_CHECK(payload.size() == place.shape.payload_bytes &&
           value.size() == RawValueBytes(place.shape));
  RecordSalt salt;
  std::memcpy(salt.data(), value.data() + 16, salt.size());
  AesKey key = ValueKey(place.random, salt);
  AesTag tag;
  bool done = TagOf(key, payload, &tag);
  std::memcpy(value.data() + kValueHeadBytes + kPayloadTagAt, tag.data(), tag.size());
  value = PutPayload(place.shape, payload, value, codecs);
  const std::span<std::byte> sealed =
      value.subspan(kValueHeadBytes, value.size() - kValueHeadBytes - sizeof(tag));
  done = done && AesGcmSeal(key, 0, Beside(value, place.name).bytes(), sealed, sealed, &tag);
  OPENSSL_cleanse(key.data(), key.size());
  std::memcpy(value.data() + value.size() - sizeof(tag), tag.data(), tag.size());
  return done ? std::optional<uint64_t>(value.size()) : std::nullopt;
}

bool UnsealValue(const ValuePlace& place, const RecordFacts& facts,
                 std::span<const std::byte> value, std::span<std::byte> payload,
                 PlaneCodecs* codecs) {
  const size_t token_bytes = facts.tokens.size_bytes();
  const std::optional<ValueCodec> codec = CodecOf(place.shape, value);
  const bool is_coded = codec == ValueCodec::kPlanes;
  if (!codec || (is_coded && (codecs == nullptr || codecs->empty())) ||
      payload.size() != place.shape.payload_bytes ||
      facts.tokens.size() != place.shape.block_tokens) {
    return false;
  }
  const std::span<const std::byte> sealed =
      value.subspan(kValueHeadBytes, value.size() - kValueHeadBytes - sizeof(AesTag));
  RecordSalt salt;
  std::memcpy(salt.data(), value.data() + 16, salt.size());
  AesTag tag, payload_tag, found_tag;
  std::memcpy(tag.data(), value.data() + value.size() - sizeof(tag), tag.size());
  AesKey key = ValueKey(place.random, salt);
  std::byte on_stack[kValueFactsBytes + 1024];
  std::vector<std::byte> elsewhere;
  std::span<std::byte> begin(on_stack);
  if (token_bytes > 1024) {
    elsewhere.resize(kValueFactsBytes + token_bytes);  // blocks of over 256 tokens
    begin = elsewhere;
  }
  begin = begin.first(kValueFactsBytes + token_bytes);
  const FactsBytes wanted = FactsOf(place.shape, place.identity, facts);
  // What is coded is shorter than the payload, and decoded in its place.
  const std::span<std::byte> stored = payload.first(sealed.size() - begin.size());
  bool is_right =
      AesGcmUnseal(key, 0, Beside(value, place.name).bytes(), sealed, begin, stored, tag) &&
      std::memcmp(begin.data(), wanted.data(), kFactsToTag) == 0 &&
      std::memcmp(begin.data() + kValueFactsBytes, facts.tokens.data(), token_bytes) == 0;
  std::memcpy(payload_tag.data(), begin.data() + kPayloadTagAt, payload_tag.size());
  is_right = is_right && (!is_coded || codecs->Decode(stored.size(), payload));
  is_right = is_right && (FaultActive(Fault::kSkippedInnerTag) ||
                          (TagOf(key, payload, &found_tag) && found_tag == payload_tag));
  OPENSSL_cleanse(key.data(), key.size());
  OPENSSL_cleanse(begin.data(), begin.size());
  return is_right;
}

}  // namespace kvasir
