// A segment, little endian (also in docs/formats/segment.md):
//   segment := head  zeros to 4096  header[slots]  hour[slots]  zeros to a multiple of 4096
//              payload[slots]  zeros to segment_bytes
//   head    := "KVSEGMNT"  u32 version  u32 header_bytes  u32 block_tokens  u32 slots
//              u64 payload_bytes  u64 segment_bytes  store[16]  u32 segment  u32 zero
//              u64 generation  tag[32]  zeros to 512
//   tag     := HMAC-SHA-256 of what is before it, under HMAC-SHA-256(secret, "kvasir segment")
//   header  := public[240]  tokens[4 * block_tokens]  tag[16]  zeros to header_bytes
//   public  := "KVR"  u8 version  u8 kind  u8 seal  u8 flags  u8 zero  store[16]  u32 segment
//              u32 slot  u64 generation  u16 layer_group  u16 part  u16 after_layer_group
//              u16 after_part  namespace_id[16]  identity[32]  key[32]  parent[32]  after_key[32]
//              u32 payload_bytes  u32 hour  salt[24]  payload_tag[16]
//   flags   := bit 0: there is an `after` record; bits 1 to 7: placings
//   hour    := u32, of last use, since 1970; 0: not known. Not authenticated.
//   payload := payload_bytes, sealed, and zeros to a multiple of 4096
// header_bytes is the least multiple of 512 that holds 256 + 4 * block_tokens. A slot without a
// record has zeros for a header. The tokens and the tag are those of AES-256-GCM under the record's
// key with nonce 1 + placings, with the public part authenticated; a payload has nonce 0.
#include "tier/segment.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "base/fault.h"

namespace kvasir {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kHeadMagic = "KVSEGMNT", kRecordMagic = "KVR";
constexpr std::string_view kRecordPurpose = "kvasir record";
constexpr uint64_t kMinSegment = uint64_t{1} << 20, kMaxSegment = uint64_t{64} << 20;
constexpr uint64_t kMinSlots = 16;
constexpr uint8_t kHasAfter = 1;
constexpr uint64_t kHeadTagAt = 72;  // of a head: its tag covers what lies before

// Writes or reads one field after the other.
class Fields {
 public:
  explicit Fields(std::span<std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  void Put(const T& value) {
    KV_CHECK(at_ + sizeof(T) <= bytes_.size());
    std::memcpy(bytes_.data() + at_, &value, sizeof(T));
    at_ += sizeof(T);
  }
  void Put(std::string_view text) {
    KV_CHECK(at_ + text.size() <= bytes_.size());
    std::memcpy(bytes_.data() + at_, text.data(), text.size());
    at_ += text.size();
  }
  uint64_t at() const { return at_; }

 private:
  std::span<std::byte> bytes_;
  uint64_t at_ = 0;
};
class ReadFields {
 public:
  explicit ReadFields(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  void Get(T* value) {
    KV_CHECK(at_ + sizeof(T) <= bytes_.size());
    std::memcpy(value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
  }
  bool GetMagic(std::string_view text) {
    at_ += text.size();
    return std::memcmp(bytes_.data(), text.data(), text.size()) == 0;
  }
  uint64_t at() const { return at_; }

 private:
  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
};

}  // namespace

SegmentShape ShapeOfSegment(const RecordShape& record, uint64_t segment_bytes) {
  SegmentShape shape{.record = record, .slots = 0, .segment_bytes = segment_bytes};
  const uint64_t most = segment_bytes / (record.slot_bytes() + 4);
  shape.slots = static_cast<uint32_t>(most);
  while (shape.slots > 0 && shape.payload_at(shape.slots) > segment_bytes) --shape.slots;
  return shape;
}

uint64_t SegmentBytesFor(const RecordShape& record, uint64_t cap_bytes) {
  uint64_t bytes = std::clamp(std::bit_floor(cap_bytes / 64), kMinSegment, kMaxSegment);
  while (ShapeOfSegment(record, bytes).slots < kMinSlots) bytes *= 2;
  return bytes;
}

void EncodeHead(const HmacKey& head_key, const SegmentHead& head,
                std::span<std::byte, kHeadBytes> out) {
  std::ranges::fill(out, std::byte{0});
  Fields fields(out);
  fields.Put(kHeadMagic);
  fields.Put(kSegmentVersion);
  fields.Put(static_cast<uint32_t>(head.shape.record.header_bytes()));
  fields.Put(head.shape.record.block_tokens);
  fields.Put(head.shape.slots);
  fields.Put(head.shape.record.payload_bytes);
  fields.Put(head.shape.segment_bytes);
  fields.Put(head.store);
  fields.Put(head.segment);
  fields.Put(uint32_t{0});
  fields.Put(head.generation);
  fields.Put(head_key.Of(out.first(fields.at())));
}

bool IsHeadOfOtherVersion(std::span<const std::byte, kHeadBytes> bytes) {
  ReadFields fields(bytes);
  uint32_t version = 0;
  if (!fields.GetMagic(kHeadMagic)) return false;
  fields.Get(&version);
  return version != kSegmentVersion;
}

std::optional<SegmentHead> ParseHead(std::span<const std::byte, kHeadBytes> bytes) {
  ReadFields fields(bytes);
  if (!fields.GetMagic(kHeadMagic)) return std::nullopt;
  SegmentHead head;
  uint32_t version = 0, header_bytes = 0, zero = 0;
  fields.Get(&version);
  fields.Get(&header_bytes);
  fields.Get(&head.shape.record.block_tokens);
  fields.Get(&head.shape.slots);
  fields.Get(&head.shape.record.payload_bytes);
  fields.Get(&head.shape.segment_bytes);
  fields.Get(&head.store);
  fields.Get(&head.segment);
  fields.Get(&zero);
  fields.Get(&head.generation);
  KV_CHECK(fields.at() == kHeadTagAt);
  // Bounded before any arithmetic on them.
  constexpr uint64_t kMaxBytes = uint64_t{1} << 40;
  const RecordShape& record = head.shape.record;
  if (version != kSegmentVersion || record.block_tokens > 1 << 16 ||
      record.payload_bytes > kMaxBytes || head.shape.segment_bytes > kMaxBytes ||
      header_bytes != record.header_bytes() ||
      head.shape != ShapeOfSegment(record, head.shape.segment_bytes)) {
    return std::nullopt;
  }
  return head;
}

std::optional<SegmentHead> DecodeHead(const HmacKey& head_key,
                                      std::span<const std::byte, kHeadBytes> bytes) {
  const Digest expected = head_key.Of(bytes.first(kHeadTagAt));
  const auto tag = bytes.subspan(kHeadTagAt, expected.size());
  if (CRYPTO_memcmp(tag.data(), expected.data(), tag.size()) != 0) return std::nullopt;
  const auto rest = bytes.subspan(kHeadTagAt + expected.size());
  if (!std::ranges::all_of(rest, [](std::byte b) { return b == std::byte{}; })) return std::nullopt;
  return ParseHead(bytes);
}

void EncodePublic(const RecordPublic& record, std::span<std::byte, kPublicBytes> out) {
  KV_CHECK(record.placings < 128);
  const RecordName after = record.after.value_or(RecordName{});
  Fields fields(out);
  fields.Put(kRecordMagic);
  fields.Put(static_cast<uint8_t>(kSegmentVersion));
  fields.Put(record.kind);
  fields.Put(record.seal);
  fields.Put(static_cast<uint8_t>((record.after ? kHasAfter : 0) | record.placings << 1));
  fields.Put(uint8_t{0});
  fields.Put(record.place.store);
  fields.Put(record.place.segment);
  fields.Put(record.place.slot);
  fields.Put(record.place.generation);
  fields.Put(record.name.layer_group);
  fields.Put(record.name.part);
  fields.Put(after.layer_group);
  fields.Put(after.part);
  fields.Put(record.namespace_id);
  fields.Put(record.identity);
  fields.Put(record.name.key);
  fields.Put(record.parent);
  fields.Put(after.key);
  fields.Put(record.payload_bytes);
  fields.Put(record.hour);
  fields.Put(record.salt);
  fields.Put(record.payload_tag);
  KV_CHECK(fields.at() == kPublicBytes);
}

std::optional<RecordPublic> DecodePublic(std::span<const std::byte, kPublicBytes> bytes) {
  ReadFields fields(bytes);
  if (!fields.GetMagic(kRecordMagic)) return std::nullopt;
  RecordPublic record;
  RecordName after;
  uint8_t version = 0, flags = 0, zero = 0;
  fields.Get(&version);
  fields.Get(&record.kind);
  fields.Get(&record.seal);
  fields.Get(&flags);
  fields.Get(&zero);
  fields.Get(&record.place.store);
  fields.Get(&record.place.segment);
  fields.Get(&record.place.slot);
  fields.Get(&record.place.generation);
  fields.Get(&record.name.layer_group);
  fields.Get(&record.name.part);
  fields.Get(&after.layer_group);
  fields.Get(&after.part);
  fields.Get(&record.namespace_id);
  fields.Get(&record.identity);
  fields.Get(&record.name.key);
  fields.Get(&record.parent);
  fields.Get(&after.key);
  fields.Get(&record.payload_bytes);
  fields.Get(&record.hour);
  fields.Get(&record.salt);
  fields.Get(&record.payload_tag);
  record.placings = flags >> 1;
  if ((flags & kHasAfter) != 0) record.after = after;
  if (version != kSegmentVersion || zero != 0 || record.kind != RecordKind::kBlock ||
      record.seal != RecordSeal::kAesGcm) {
    return std::nullopt;
  }
  return record;
}

AesKey RecordKeyOf(const HmacKey& owner_key, const RecordSalt& salt) {
  return owner_key.Of(std::as_bytes(std::span(kRecordPurpose)), std::as_bytes(std::span(salt)));
}

AesKey RecordKeyOf(const AesKey& owner_key, const RecordSalt& salt) {
  HmacKey key(owner_key);
  const AesKey record_key = RecordKeyOf(key, salt);
  OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
  return record_key;
}

bool SealPayload(const AesKey& record_key, std::span<const std::byte> payload,
                 std::span<std::byte> out, AesTag* tag) {
  return AesGcmSeal(record_key, 0, {}, payload, out, tag);
}
bool UnsealPayload(const AesKey& record_key, std::span<const std::byte> sealed, const AesTag& tag,
                   std::span<std::byte> out) {
  const bool same = AesGcmUnseal(record_key, 0, {}, sealed, out, tag);
  return same || FaultActive(Fault::kSkippedTag);
}

bool SealHeader(const AesKey& record_key, const RecordPublic& record, uint32_t block_tokens,
                std::span<const std::byte> tokens, std::span<std::byte> header) {
  const uint64_t token_bytes = uint64_t{4} * block_tokens;
  KV_CHECK(tokens.size() == token_bytes);
  const auto open_part = header.first<kPublicBytes>();
  EncodePublic(record, open_part);
  AesTag tag;
  if (!AesGcmSeal(record_key, 1 + uint64_t{record.placings}, open_part, tokens,
                  header.subspan(kPublicBytes, token_bytes), &tag)) {
    return false;
  }
  std::memcpy(header.data() + kPublicBytes + token_bytes, tag.data(), tag.size());
  const uint64_t end = kPublicBytes + token_bytes + tag.size();
  std::ranges::fill(header.subspan(end), std::byte{0});
  return true;
}

bool UnsealHeader(const AesKey& record_key, uint8_t placings, uint32_t block_tokens,
                  std::span<const std::byte> header, std::span<std::byte> tokens) {
  const uint64_t token_bytes = uint64_t{4} * block_tokens;
  const uint64_t end = kPublicBytes + token_bytes + sizeof(AesTag);
  const bool rest_is_zero =
      std::ranges::all_of(header.subspan(end), [](std::byte b) { return b == std::byte{}; });
  AesTag tag;
  std::memcpy(tag.data(), header.data() + kPublicBytes + token_bytes, tag.size());
  return rest_is_zero &&
         AesGcmUnseal(record_key, 1 + uint64_t{placings}, header.first(kPublicBytes),
                      header.subspan(kPublicBytes, token_bytes), tokens, tag);
}

}  // namespace kvasir
