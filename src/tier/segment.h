// The bytes of a segment file: where slots lie in it, and how a record's header is sealed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/digest.h"
#include "tier/aes_gcm.h"
#include "tier/tier.h"

namespace kvasir {

using StoreId = std::array<uint8_t, 16>;   // names a store: an Identity under a secret
using OwnerTag = std::array<uint8_t, 16>;  // random; names an owner's key
using RecordSalt = std::array<uint8_t, 24>;

inline constexpr uint32_t kSegmentVersion = 1;
inline constexpr uint64_t kTierPageBytes = 4096;
inline constexpr uint64_t kPublicBytes = 240;  // of a header: in clear, authenticated
inline constexpr uint64_t kHeadBytes = 512;    // of a segment's first page, in use

// What all records of a store have in common.
struct RecordShape {
  uint32_t block_tokens = 0;
  uint64_t payload_bytes = 0;

  // 256 is public part and tag.
  uint64_t header_bytes() const { return RoundUp(256 + uint64_t{4} * block_tokens, 512); }
  uint64_t stride_bytes() const { return RoundUp(payload_bytes, kTierPageBytes); }
  uint64_t slot_bytes() const { return header_bytes() + stride_bytes(); }
  bool operator==(const RecordShape&) const = default;
};

// Where things lie in a segment.
struct SegmentShape {
  RecordShape record;
  uint32_t slots = 0;
  uint64_t segment_bytes = 0;  // of the whole file

  uint64_t header_at(uint32_t slot) const { return kTierPageBytes + slot * record.header_bytes(); }
  uint64_t hour_at(uint32_t slot) const { return header_at(slots) + uint64_t{4} * slot; }
  uint64_t payload_at(uint32_t slot) const {
    return RoundUp(hour_at(slots), kTierPageBytes) + slot * record.stride_bytes();
  }
  bool operator==(const SegmentShape&) const = default;
};

// Describes a segment of this many bytes, with as many slots as fit.
SegmentShape ShapeOfSegment(const RecordShape& record, uint64_t segment_bytes);
// Returns a power of two of about cap/64, from 1 to 64 MiB; more where that is needed for 16 slots.
uint64_t SegmentBytesFor(const RecordShape& record, uint64_t cap_bytes);

// Returns whether these are the first bytes of a segment of another version.
bool IsHeadOfOtherVersion(std::span<const std::byte, kHeadBytes> bytes);
// What a segment's first bytes say. They decide how all others are read, so they are authenticated.
struct SegmentHead {
  SegmentShape shape;
  StoreId store{};
  uint32_t segment = 0;
  uint64_t generation = 0;  // random; another file of the same name has another one
};
void EncodeHead(const HmacKey& head_key, const SegmentHead& head,
                std::span<std::byte, kHeadBytes> out);
// Decodes a head without a key, so it may be a lie: for lists alone. Absent: of another version.
std::optional<SegmentHead> ParseHead(std::span<const std::byte, kHeadBytes> bytes);
// Decodes a head. Absent: damaged, of another version, or written under another secret.
std::optional<SegmentHead> DecodeHead(const HmacKey& head_key,
                                      std::span<const std::byte, kHeadBytes> bytes);

// Where a record lies. Its header names the place, so that it is of use nowhere else.
struct RecordPlace {
  StoreId store{};
  uint32_t segment = 0, slot = 0;
  uint64_t generation = 0;
  bool operator==(const RecordPlace&) const = default;
};

// Never renumber.
enum class RecordKind : uint8_t { kBlock = 1 };
enum class RecordSeal : uint8_t { kAesGcm = 1 };

// The public part of a header.
struct RecordPublic {
  RecordKind kind = RecordKind::kBlock;
  RecordSeal seal = RecordSeal::kAesGcm;
  uint8_t placings =
      0;  // how many other places were sealed into a header of this salt, at most 127
  RecordPlace place;
  RecordName name;
  OwnerTag namespace_id{};
  Digest identity{};
  BlockKey parent{};
  std::optional<RecordName> after;
  uint32_t payload_bytes = 0;
  uint32_t hour = 0;  // since 1970, when it was written
  RecordSalt salt{};
  AesTag payload_tag{};
};
void EncodePublic(const RecordPublic& record, std::span<std::byte, kPublicBytes> out);
// Decodes a header's public part. Absent: there is no record, or one of another version, kind or
// seal.
std::optional<RecordPublic> DecodePublic(std::span<const std::byte, kPublicBytes> bytes);

// Returns HMAC-SHA-256(owner's key, "kvasir record" || salt). The salt is random for each record,
// so no pair of key and nonce occurs twice.
AesKey RecordKeyOf(const AesKey& owner_key, const RecordSalt& salt);
AesKey RecordKeyOf(const HmacKey& owner_key, const RecordSalt& salt);  // with its pads at hand

// Seals. The payload has nonce 0. False only where OpenSSL has no memory.
bool SealPayload(const AesKey& record_key, std::span<const std::byte> payload,
                 std::span<std::byte> out, AesTag* tag);
bool UnsealPayload(const AesKey& record_key, std::span<const std::byte> sealed, const AesTag& tag,
                   std::span<std::byte> out);

// `header`: header_bytes() of them. SealHeader writes the public part, encrypts the tokens that
// follow it under nonce 1 + placings, and adds the tag and zeros. UnsealHeader is false where the
// header is not what was sealed; `tokens` gets 4 x block_tokens bytes.
bool SealHeader(const AesKey& record_key, const RecordPublic& record, uint32_t block_tokens,
                std::span<const std::byte> tokens, std::span<std::byte> header);
bool UnsealHeader(const AesKey& record_key, uint8_t placings, uint32_t block_tokens,
                  std::span<const std::byte> header, std::span<std::byte> tokens);

}  // namespace kvasir
