// The bytes of a value in a fleet's store: one block, encrypted and authenticated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/digest.h"
#include "tier/segment.h"

namespace kvasir {

inline constexpr uint64_t kValueHeadBytes = 40;    // in clear, authenticated
inline constexpr uint64_t kValueFactsBytes = 160;  // encrypted, before tokens and payload

// Never renumber.
enum class ValueCodec : uint8_t { kRaw = 0 };

// Returns the bytes of a value whose payload is not compressed.
constexpr uint64_t RawValueBytes(const RecordShape& shape) {
  return kValueHeadBytes + kValueFactsBytes + uint64_t{4} * shape.block_tokens +
         shape.payload_bytes + sizeof(AesTag);
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
// Writes the part of a value that comes from its facts, except the payload's tag.
void WriteValueFacts(const RecordShape& shape, const Digest& identity, const RecordFacts& facts,
                     const RecordSalt& salt, std::span<std::byte> value);
// Seals a value whose facts are written. False: OpenSSL has no memory.
bool SealValue(const ValuePlace& place, std::span<const std::byte> payload,
               std::span<std::byte> value);
// Decrypts the value into `payload`. False: it is not what was sealed under this name for these
// facts, or the payload in its place does not have its tag; the payload's bytes have no meaning
// then.
bool OpenValue(const ValuePlace& place, const RecordFacts& facts, std::span<const std::byte> value,
               std::span<std::byte> payload);

}  // namespace kvasir
