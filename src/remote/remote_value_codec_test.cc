// Values whose payload is compressed.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/fault.h"
#include "base/rounds_for_test.h"
#include "remote/numbers_for_test.h"
#include "remote/remote_value.h"
#include "remote/value_swaps_for_test.h"
#include "tier/tier_driver_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kCodedPayload = 16'384;  // of the bundled model

class CodedValue : public testing::Test {
 protected:
  CodedValue() { value_ = Seal(record_); }
  ~CodedValue() override { InjectFault(Fault::kNone); }
  static TestRecord RecordLike(NumbersLike like, uint32_t number) {
    TestRecord record(0, number, 0, kSmallTokens, kCodedPayload);
    Random random(number);
    FillNumbers(like, random, record.payload);
    return record;
  }
  std::vector<std::byte> Seal(const TestRecord& record) {
    std::vector<std::byte> value(RawValueBytes(shape_), std::byte{0xEE});
    RecordSalt salt;
    salt.fill(9);
    WriteValueFacts(shape_, identity_, record.Facts(), salt, value);
    const auto bytes = SealValue(Place(), record.payload, value, &codecs_);
    EXPECT_TRUE(bytes);
    for (size_t i = bytes.value_or(0); i < value.size(); ++i) EXPECT_EQ(value[i], std::byte{0});
    value.resize(bytes.value_or(0));
    return value;
  }
  // Seals the payload of `wrong` with the tag of the right one, as nothing but a fault does.
  std::vector<std::byte> SealWithTagOfRight(const TestRecord& wrong) {
    std::vector<std::byte> value = Seal(wrong);
    std::vector<std::byte> right = value_;
    RecordSalt salt;
    salt.fill(9);
    const AesKey key = ValueKey(random_, salt);
    AesTag tag;
    for (std::vector<std::byte>* one : {&right, &value}) {
      std::memcpy(tag.data(), one->data() + one->size() - sizeof(tag), sizeof(tag));
      EXPECT_TRUE(AesGcmUnseal(key, 0, BesideOf(*one), SealedOf(*one), SealedOf(*one), tag));
    }
    std::memcpy(SealedOf(value).data() + 140, SealedOf(right).data() + 140, sizeof(tag));
    EXPECT_TRUE(AesGcmSeal(key, 0, BesideOf(value), SealedOf(value), SealedOf(value), &tag));
    std::memcpy(value.data() + value.size() - sizeof(tag), tag.data(), sizeof(tag));
    return value;
  }
  static std::vector<std::byte> BesideOf(std::span<const std::byte> value) {
    std::vector<std::byte> beside(value.begin(), value.begin() + kValueHeadBytes);
    for (const char c : kValueName) beside.push_back(static_cast<std::byte>(c));
    return beside;
  }
  static std::span<std::byte> SealedOf(std::span<std::byte> value) {
    return value.subspan(kValueHeadBytes, value.size() - kValueHeadBytes - sizeof(AesTag));
  }
  ValuePlace Place() const { return {shape_, identity_, random_, kValueName}; }
  bool Opens(std::span<const std::byte> value) {
    return UnsealValue(Place(), record_.Facts(), value, payload_, &codecs_);
  }

  static constexpr std::string_view kValueName = "kvasir/1/fleet/owner/4567";
  RecordShape shape_{.block_tokens = kSmallTokens, .payload_bytes = kCodedPayload};
  Digest identity_ = TestRecord::Filled(1);
  AesKey random_ = TestRecord::Filled(2);
  TestRecord record_ = RecordLike(NumbersLike::kBf16, 3);
  Arena arena_ = *Arena::Create(PlaneCodec::MemoryBytes(kCodedPayload));
  PlaneCodecs codecs_{arena_, kCodedPayload, 1};
  std::vector<std::byte> value_, payload_ = std::vector<std::byte>(kCodedPayload);
};

TEST_F(CodedValue, IsShorterAndGivesBackWhatWasSealed) {
  EXPECT_EQ(value_.size(), 12'288u) << "whole pages";
  EXPECT_TRUE(Opens(value_));
  EXPECT_EQ(payload_, record_.payload);
  for (uint32_t i = 4; i < 200; ++i) {
    record_ = RecordLike(NumbersLike(i % 4), i);
    const std::vector<std::byte> value = Seal(record_);
    EXPECT_TRUE(IsValueLength(shape_, value.size()));
    ASSERT_TRUE(Opens(value)) << i;
    ASSERT_EQ(payload_, record_.payload) << i;
  }
}

TEST_F(CodedValue, IsRawWhereItGainsTooLittle) {
  EXPECT_EQ(Seal(RecordLike(NumbersLike::kNoise, 5)).size(), RawValueBytes(shape_));
  // Its pages would be four, of which a raw value has little more.
  EXPECT_EQ(Seal(RecordLike(NumbersLike::kF16, 6)).size(), RawValueBytes(shape_));
  EXPECT_EQ(MostCodedBytes(shape_), 12'288u);
  EXPECT_EQ(MostCodedBytes({.block_tokens = 16, .payload_bytes = 600}), 0u);
}

TEST_F(CodedValue, NeedsACodec) {
  EXPECT_FALSE(UnsealValue(Place(), record_.Facts(), value_, payload_, nullptr));
  Arena arena;
  PlaneCodecs none(arena, kCodedPayload, 0);
  EXPECT_FALSE(UnsealValue(Place(), record_.Facts(), value_, payload_, &none));
  EXPECT_TRUE(Opens(value_));
}

TEST_F(CodedValue, NothingForgedOrSwappedIsUnsealed) {
  Random random(12);
  const std::vector<std::byte> raw = [&] {
    std::vector<std::byte> value(RawValueBytes(shape_));
    RecordSalt salt;
    salt.fill(9);
    WriteValueFacts(shape_, identity_, record_.Facts(), salt, value);
    EXPECT_EQ(SealValue(Place(), record_.payload, value, nullptr), value.size());
    return value;
  }();
  ASSERT_TRUE(Opens(raw));
  const int rounds = Rounds(1000000, 5000);
  constexpr uint64_t kForgeries = 5;
  std::array<int, kForgeries + kNumValueSwaps> tried = {};
  uint32_t opened = 0;
  for (int i = 0; i < rounds;) {
    std::vector<std::byte> value = value_;
    const uint64_t kind = random.Below(tried.size());
    switch (kind) {
      case 0:  // bits
        for (uint64_t k = 0; k <= random.Below(3); ++k) {
          value[random.Below(value.size())] ^= std::byte(1u << random.Below(8));
        }
        break;
      case 1:  // a bit of the head
        value[random.Below(kValueHeadBytes)] ^= std::byte(1u << random.Below(8));
        break;
      case 2:
        value.resize(random.Below(3) * kCodedPageBytes + random.Below(2) * random.Below(4096));
        break;
      case 3:  // the length of the other codec
        value.resize(raw.size());
        value[9] = std::byte(random.Below(3));
        break;
      case 4:
        value = raw;
        value[9] = std::byte(1 + random.Below(2));
        if (random.Below(2) == 0) value.resize(value_.size());
        break;
      default:
        opened += OpensSwapped(ValueSwap(kind - kForgeries), random, Place(), record_.Facts(),
                               value, payload_, &codecs_);
    }
    if (kind < kForgeries) {
      if (value == value_) continue;  // not a forgery
      opened += Opens(value);
    }
    ++tried[kind];
    ++i;
  }
  EXPECT_EQ(opened, 0u) << "of " << rounds;
  for (size_t kind = 0; kind < tried.size(); ++kind) {
    EXPECT_GT(tried[kind], rounds / 12) << "of kind " << kind;
  }
  EXPECT_TRUE(Opens(value_));
}

// A member of the fleet whose codec errs.
TEST_F(CodedValue, ThePayloadIsCheckedWhereItIsDecoded) {
  TestRecord wrong = record_;
  wrong.payload[17] ^= std::byte{4};
  const std::vector<std::byte> sealed = SealWithTagOfRight(wrong);
  ASSERT_LT(sealed.size(), RawValueBytes(shape_));
  EXPECT_FALSE(Opens(sealed));
  EXPECT_TRUE(Opens(SealWithTagOfRight(record_)));
  InjectFault(Fault::kSkippedInnerTag);
  EXPECT_TRUE(Opens(sealed)) << "the test can fail";
}

}  // namespace
}  // namespace kvasir
