// The bytes of a value in a fleet's store: one block, encrypted and authenticated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/digest.h"
#include "remote/plane_codec.h"
#include "tier/segment.h"

namespace kvasir {

inline constexpr uint64_t kValueHeadBytes = 40;    // in clear, authenticated
inline constexpr uint64_t kValueFactsBytes = 160;  // encrypted, before tokens and payload
inline constexpr uint64_t kCodedPageBytes = 4096;  // coded values have whole pages: a length tells

// Never renumber. kPlanes: PlaneCodec's.
enum class ValueCodec : uint8_t { kRaw = 0, kPlanes = 1 };

// Returns where the payload begins in a value.
constexpr uint64_t ValuePayloadAt(const RecordShape& shape) {
  return kValueHeadBytes + kValueFactsBytes + uint64_t{4} * shape.block_tokens;
}
// Returns the bytes of a value whose payload is not compressed. None is longer.
constexpr uint64_t RawValueBytes(const RecordShape& shape) {
  return ValuePayloadAt(shape) + shape.payload_bytes + sizeof(AesTag);
}
// Returns the most bytes of a value whose payload is compressed: it gains 1/32 at least.
constexpr uint64_t MostCodedBytes(const RecordShape& shape) {
  return RawValueBytes(shape) * 31 / 32 / kCodedPageBytes * kCodedPageBytes;
}
// Returns whether a value of the model may have so many bytes.
constexpr bool IsValueLength(const RecordShape& shape, uint64_t bytes) {
  return bytes == RawValueBytes(shape) ||
         (bytes % kCodedPageBytes == 0 && bytes <= MostCodedBytes(shape) &&
          bytes > ValuePayloadAt(shape) + shape.payload_bytes / 2 + sizeof(AesTag));
}

// What all values of a model have in common, and what names one of them.
struct ValuePlace {
  const RecordShape& shape;
  const Digest& identity;
  const AesKey& random;   // of the owner's epoch
  std::string_view name;  // in the store
};

// Returns the key of a value: HMAC-SHA-256(random, "kvasir remote value" || salt).
AesKey ValueKey(const AesKey& random, const RecordSalt& salt);
// Writes the part of a value that comes from its facts, except the payload's tag. REQUIRES:
// value.size() == RawValueBytes(shape).
void WriteValueFacts(const RecordShape& shape, const Digest& identity, const RecordFacts& facts,
                     const RecordSalt& salt, std::span<std::byte> value);
// Seals a value whose facts are written, and returns how many of its bytes are to be stored; the
// others are wiped. With `codecs` the payload is compressed where that gains enough. Absent:
// OpenSSL has no memory.
std::optional<uint64_t> SealValue(const ValuePlace& place, std::span<const std::byte> payload,
                                  std::span<std::byte> value, PlaneCodecs* codecs);
// Decrypts the value into `payload`, and decodes it there. False: it is not what was sealed under
// this name for these facts, or the payload in its place does not have its tag; the payload's bytes
// have no meaning then. `codecs`: nullptr or empty where the model's values are never compressed.
bool UnsealValue(const ValuePlace& place, const RecordFacts& facts,
                 std::span<const std::byte> value, std::span<std::byte> payload,
                 PlaneCodecs* codecs);

}  // namespace kvasir
