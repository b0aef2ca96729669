// Tiers that compress and tiers that do not, on one store.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "remote/numbers_for_test.h"
#include "remote/remote_on_fake_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kCodedBytes = 16'384;

class RemoteCodecs : public RemoteTierOnFake {
 protected:
  RemoteTierOptions OptionsOf(CompressWhen compresses) {
    RemoteTierOptions options = SmallOptions(fake_.address());
    options.memory_bytes = uint64_t{1} << 20;
    options.shape.payload_bytes = kCodedBytes;
    options.num_codecs = 2;
    options.compresses = compresses;
    return options;
  }
  static TestRecord Record(uint32_t chain, uint32_t number, NumbersLike like = NumbersLike::kBf16) {
    TestRecord record(chain, number, 0, kSmallTokens, kCodedBytes);
    Random random(chain * 100 + number);
    FillNumbers(like, random, record.payload);
    return record;
  }
  // Returns how many values of each length the store has.
  std::map<size_t, int> Lengths() {
    std::map<size_t, int> lengths;
    for (const auto& [name, value] : fake_.values()) {
      if (name.size() > 100) ++lengths[value.size()];
    }
    return lengths;
  }
};

TEST_F(RemoteCodecs, EachReadsWhatTheOtherHasWritten) {
  const uint64_t raw = RawValueBytes(OptionsOf(CompressWhen::kNever).shape);
  Open(OptionsOf(CompressWhen::kAlways));
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(driver_->Write(Record(0, i)));
  ASSERT_TRUE(driver_->Write(Record(2, 0, NumbersLike::kNoise)));
  const auto flushed = driver_->Flush();
  ASSERT_TRUE(flushed);
  EXPECT_EQ(tier_->Remote().written_bytes, 4 * 12'288 + raw);
  EXPECT_LE(flushed->bytes, 4 * 12'288 + raw);  // some may be stored before it is asked for
  EXPECT_EQ(Lengths(), (std::map<size_t, int>{{12'288, 4}, {raw, 1}}));
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(driver_->ReadBack(Record(0, i)), TierDriver::Read::kRight) << i;
  }
  Open(OptionsOf(CompressWhen::kNever));
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(driver_->ReadBack(Record(0, i)), TierDriver::Read::kRight) << i;
    ASSERT_TRUE(driver_->Write(Record(1, i)));
  }
  EXPECT_EQ(driver_->ReadBack(Record(2, 0, NumbersLike::kNoise)), TierDriver::Read::kRight);
  ASSERT_TRUE(driver_->Flush());
  EXPECT_EQ(tier_->Remote().read_bytes, 4 * 12'288 + raw);
  EXPECT_EQ(tier_->Remote().written_bytes, 4 * raw);
  EXPECT_EQ(Lengths(), (std::map<size_t, int>{{12'288, 4}, {raw, 5}}));
  Open(OptionsOf(CompressWhen::kAlways));
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(driver_->ReadBack(Record(1, i)), TierDriver::Read::kRight) << i;
  }
}

TEST_F(RemoteCodecs, WhereTheStoreIsFastF16StaysAsItIs) {
  for (const double slow_bytes_per_s : {1e15, 1.0}) {
    RemoteTierOptions options = OptionsOf(CompressWhen::kWhereSlow);
    options.slow_bytes_per_s = slow_bytes_per_s;  // below it the store is slow
    Open(options);
    ASSERT_TRUE(driver_->Write(Record(slow_bytes_per_s > 1 ? 5 : 6, 0)));
    ASSERT_TRUE(driver_->Flush());
  }
  const uint64_t raw = RawValueBytes(OptionsOf(CompressWhen::kNever).shape);
  EXPECT_EQ(Lengths(), (std::map<size_t, int>{{12'288, 1}, {raw, 1}}));
}

TEST_F(RemoteCodecs, WhatIsCutOrGrownIsDamage) {
  Open(OptionsOf(CompressWhen::kAlways));
  for (uint32_t i = 0; i < 6; ++i) ASSERT_TRUE(driver_->Write(Record(0, i)));
  ASSERT_TRUE(driver_->Flush());
  int changed = 0;
  fake_.Change([&](std::map<std::string, std::string>& values) {
    for (auto& [name, value] : values) {
      if (name.size() < 100) continue;
      switch (changed++) {
        case 0:
          value.resize(8192);
          break;
        case 1:
          value.resize(value.size() - 1);
          break;
        case 2:
          value.resize(value.size() + 4096);  // nearly as long as a raw one
          break;
        case 3:
          value.resize(RawValueBytes(OptionsOf(CompressWhen::kNever).shape));
          break;
        case 4:
          value[9] = 0;
          break;
        default:
          value[value.size() / 2] ^= 1;
      }
    }
  });
  EXPECT_EQ(changed, 6);
  Open(OptionsOf(CompressWhen::kNever));
  for (uint32_t i = 0; i < 6; ++i) {
    const TierDriver::Read read = driver_->ReadBack(Record(0, i));
    EXPECT_TRUE(read == TierDriver::Read::kDamaged || read == TierDriver::Read::kFailed) << i;
  }
  EXPECT_EQ(tier_->Remote().fault_damaged, 6u);
  EXPECT_EQ(tier_->Remote().state, RemoteStats::State::kOn);
}

TEST_F(RemoteCodecs, AModelOfOtherFormatsReadsNone) {
  Open(OptionsOf(CompressWhen::kAlways));
  ASSERT_TRUE(driver_->Write(Record(0, 0)));
  ASSERT_TRUE(driver_->Flush());
  RemoteTierOptions options = OptionsOf(CompressWhen::kNever);
  options.num_codecs = 0;
  Open(options);
  EXPECT_EQ(driver_->ReadBack(Record(0, 0)), TierDriver::Read::kDamaged);
}

}  // namespace
}  // namespace kvasir
