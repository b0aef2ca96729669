#include "tier/segment.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/fault.h"
#include "base/random.h"

namespace kvasir {
namespace {

constexpr RecordShape kShape{.block_tokens = 16, .payload_bytes = 5000};

template <typename Array>
Array Filled(uint64_t seed) {
  Random random(seed);
  Array array;
  for (auto& byte : array) byte = static_cast<uint8_t>(random.Bits());
  return array;
}

RecordPublic SomeRecord() {
  RecordPublic record;
  record.place = {.store = Filled<StoreId>(1), .segment = 7, .slot = 3, .generation = 0x1122334455};
  record.name = {.key = Filled<BlockKey>(2), .layer_group = 1, .part = 2};
  record.namespace_id = Filled<OwnerTag>(3);
  record.identity = Filled<Digest>(4);
  record.parent = Filled<BlockKey>(5);
  record.after = RecordName{.key = Filled<BlockKey>(6), .layer_group = 0, .part = 1};
  record.payload_bytes = 5000;
  record.hour = 495000;
  record.salt = Filled<RecordSalt>(7);
  record.payload_tag = Filled<AesTag>(8);
  record.placings = 2;
  return record;
}

TEST(Segment, ASlotsHeaderIs512BytesOrTheNextMultipleThatHoldsIt) {
  EXPECT_EQ((RecordShape{16, 1}.header_bytes()), 512u);
  EXPECT_EQ((RecordShape{64, 1}.header_bytes()), 512u);
  EXPECT_EQ((RecordShape{65, 1}.header_bytes()), 1024u);
  EXPECT_EQ((RecordShape{192, 1}.header_bytes()), 1024u);
}

TEST(Segment, HasPartsThatDoNotOverlapAndPayloadsOnPages) {
  for (const uint64_t payload : {1ull, 4096ull, 5000ull, 196608ull, 6291456ull}) {
    for (const uint64_t cap : {1ull << 20, 1ull << 28, 20ull << 30, 1ull << 40}) {
      const RecordShape record{.block_tokens = 16, .payload_bytes = payload};
      const uint64_t bytes = SegmentBytesFor(record, cap);
      const SegmentShape shape = ShapeOfSegment(record, bytes);
      EXPECT_GE(shape.slots, 16u);
      EXPECT_EQ(shape.payload_at(0) % kTierPageBytes, 0u);
      EXPECT_GE(shape.payload_at(0), shape.hour_at(shape.slots));
      EXPECT_LE(shape.payload_at(shape.slots), bytes);
      if (payload < 100'000) {
        EXPECT_GE(bytes, uint64_t{1} << 20);
        EXPECT_LE(bytes, uint64_t{64} << 20);
      }
    }
  }
  EXPECT_EQ(SegmentBytesFor(kShape, uint64_t{1} << 30), uint64_t{16} << 20);
}

TEST(Segment, AHeadIsReadBackAndNoOtherBitIsTaken) {
  const HmacKey key(Filled<Digest>(9));
  const SegmentHead head{.shape = ShapeOfSegment(kShape, 1 << 20),
                         .store = Filled<StoreId>(1),
                         .segment = 12,
                         .generation = 77};
  std::array<std::byte, kHeadBytes> bytes;
  EncodeHead(key, head, bytes);
  const auto read = DecodeHead(key, bytes);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->shape, head.shape);
  EXPECT_EQ(read->store, head.store);
  EXPECT_EQ(read->segment, 12u);
  EXPECT_EQ(read->generation, 77u);
  EXPECT_FALSE(DecodeHead(HmacKey(Filled<Digest>(10)), bytes));
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= std::byte(1 << bit % 8);
    EXPECT_FALSE(DecodeHead(key, flipped)) << "bit " << bit;
  }
}

TEST(Segment, APublicPartIsReadBack) {
  const RecordPublic record = SomeRecord();
  std::array<std::byte, kPublicBytes> bytes, again;
  EncodePublic(record, bytes);
  const auto read = DecodePublic(bytes);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->place, record.place);
  EXPECT_EQ(read->name, record.name);
  EXPECT_EQ(read->after, record.after);
  EXPECT_EQ(read->hour, record.hour);
  EXPECT_EQ(read->placings, 2);
  EncodePublic(*read, again);
  EXPECT_EQ(bytes, again);
  EXPECT_FALSE(DecodePublic(std::array<std::byte, kPublicBytes>{}));
}

TEST(Segment, NoBitOfAHeaderMayChange) {
  const RecordPublic record = SomeRecord();
  const AesKey key = RecordKeyOf(Filled<AesKey>(11), record.salt);
  std::vector<std::byte> header(kShape.header_bytes(), std::byte{0xAA}), tokens(64), read(64);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = std::byte(i);
  ASSERT_TRUE(SealHeader(key, record, 16, tokens, header));
  ASSERT_TRUE(UnsealHeader(key, record.placings, 16, header, read));
  EXPECT_EQ(read, tokens);
  EXPECT_FALSE(UnsealHeader(key, record.placings + 1, 16, header, read));
  for (size_t bit = 0; bit < header.size() * 8; ++bit) {
    header[bit / 8] ^= std::byte(1 << bit % 8);
    EXPECT_FALSE(UnsealHeader(key, record.placings, 16, header, read)) << "bit " << bit;
    header[bit / 8] ^= std::byte(1 << bit % 8);
  }
}

TEST(Segment, NoByteOfAPayloadMayChange) {
  const AesKey key = Filled<AesKey>(12);
  std::vector<std::byte> payload(5000), sealed(5000), read(5000);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = std::byte(i * 7);
  AesTag tag;
  ASSERT_TRUE(SealPayload(key, payload, sealed, &tag));
  ASSERT_TRUE(UnsealPayload(key, sealed, tag, read));
  EXPECT_EQ(read, payload);
  for (size_t i = 0; i < sealed.size(); ++i) {
    sealed[i] ^= std::byte{0x10};
    EXPECT_FALSE(UnsealPayload(key, sealed, tag, read)) << "byte " << i;
    sealed[i] ^= std::byte{0x10};
  }
  sealed[0] ^= std::byte{1};
  InjectFault(Fault::kSkippedTag);
  EXPECT_TRUE(UnsealPayload(key, sealed, tag, read));
  InjectFault(Fault::kNone);
}

}  // namespace
}  // namespace kvasir
