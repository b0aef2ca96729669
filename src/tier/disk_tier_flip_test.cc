// The disk tier reads files in which one bit or byte is wrong: a miss or no change.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/hex.h"
#include "base/log.h"
#include "tier/disk_tier.h"
#include "tier/sim_storage_for_test.h"
#include "tier/tier_driver_for_test.h"

namespace kvasir {
namespace {

using Read = TierDriver::Read;

constexpr uint32_t kRecords = 3;
constexpr uint64_t kFlipSegment = uint64_t{256} << 10;

TestRecord FlipRecord(uint32_t number) {
  return TestRecord(0, number, 0, kSmallTokens, kSmallPayload);
}

// A store of a chain of three records, on a simulated disk that is copied for each flip.
class TierFlips : public testing::Test {
 protected:
  TierFlips() : disk_(1) {
    SetLogLevel(LogLevel::kError);
    options_ = {.folder = "/sim/kv",
                .cap_bytes = (uint64_t{2} << 20) + 3 * kFlipSegment,
                .secret = Secret{1},
                .identity = Digest{2},
                .shape = {.block_tokens = kSmallTokens, .payload_bytes = kSmallPayload},
                .model = "test",
                .kv_format = "f16",
                .threads = 0,
                .segment_bytes = kFlipSegment,
                .num_buffers = 8};
    {
      auto tier = DiskTier::Open(options_, disk_);
      KV_CHECK(tier);
      TierDriver driver(**tier, [&] { (*tier)->RunPending(); });
      for (uint32_t i = 0; i < kRecords; ++i) KV_CHECK(driver.Write(FlipRecord(i)));
      KV_CHECK(driver.Flush());
      disk_.PassTime(3600);
      (*tier)->RunPending();
    }
    const FileId root = *disk_.OpenRoot("");
    const FileId store = *disk_.OpenFolder(root, Store());
    for (const FileId folder : {root, store, *disk_.OpenFolder(store, "keys")}) {
      KV_CHECK(disk_.SyncFolder(folder));
    }
  }
  ~TierFlips() override { SetLogLevel(LogLevel::kInfo); }

  std::string Store() const { return ToHex(StoreIdOf(options_.secret, options_.identity)); }
  static FileId OpenIn(SimStorage& disk, const std::string& store, const std::string& folder,
                       const std::string& name) {
    FileId in = *disk.OpenFolder(*disk.OpenRoot(""), store);
    if (!folder.empty()) in = *disk.OpenFolder(in, folder);
    return *disk.OpenFile(in, name, OpenMode::kWrite);
  }
  uint64_t BytesOf(const std::string& folder, const std::string& name) {
    return disk_.FactsOf(OpenIn(disk_, Store(), folder, name))->bytes;
  }

  // Reads the records back, with the byte at `at` of the file changed.
  std::vector<Read> After(const std::string& folder, const std::string& name, uint64_t at,
                          std::byte change) {
    SimStorage disk(disk_, 2);
    const FileId file = OpenIn(disk, Store(), folder, name);
    std::array<std::byte, 1> byte;
    KV_CHECK(ReadAll(disk, file, byte, at));
    byte[0] ^= change;
    KV_CHECK(WriteAll(disk, file, byte, at));
    disk.Close(file);
    auto tier = DiskTier::Open(options_, disk);
    EXPECT_TRUE(tier) << name << " at " << at;
    std::vector<Read> reads(kRecords, Read::kWrong);
    if (!tier) return reads;
    TierDriver driver(**tier, [&] { (*tier)->RunPending(); });
    for (uint32_t i = 0; i < kRecords; ++i) reads[i] = driver.ReadBack(FlipRecord(i));
    EXPECT_TRUE((*tier)->CheckInvariants()) << name << " at " << at;
    return reads;
  }
  static bool IsMiss(Read read) { return read == Read::kNotThere || read == Read::kDamaged; }

  SimStorage disk_;
  DiskTierOptions options_;
};

TEST_F(TierFlips, EachBitOfAHeaderIsAMissOfItsRecordAndThoseAfterIt) {
  const SegmentShape shape = ShapeOfSegment(options_.shape, kFlipSegment);
  for (uint64_t bit = 0; bit < shape.record.header_bytes() * 8; ++bit) {
    const auto reads =
        After("", SegmentFileName(0), shape.header_at(1) + bit / 8, std::byte(1 << bit % 8));
    EXPECT_EQ(reads[0], Read::kRight) << "bit " << bit;
    EXPECT_EQ(reads[1], Read::kNotThere) << "bit " << bit;
    EXPECT_EQ(reads[2], Read::kNotThere) << "bit " << bit;
  }
}

TEST_F(TierFlips, EachBitOfASegmentsHeadIsAMissOfAllItsRecords) {
  for (uint64_t bit = 0; bit < kHeadBytes * 8; ++bit) {
    for (const Read read : After("", SegmentFileName(0), bit / 8, std::byte(1 << bit % 8))) {
      EXPECT_EQ(read, Read::kNotThere) << "bit " << bit;
    }
  }
}

TEST_F(TierFlips, EachByteOfAPayloadIsAMissOfItsRecordAlone) {
  const SegmentShape shape = ShapeOfSegment(options_.shape, kFlipSegment);
  for (uint64_t i = 0; i < kSmallPayload; ++i) {
    const auto reads = After("", SegmentFileName(0), shape.payload_at(1) + i, std::byte{0x20});
    EXPECT_EQ(reads[0], Read::kRight) << "byte " << i;
    EXPECT_EQ(reads[1], Read::kDamaged) << "byte " << i;
    EXPECT_EQ(reads[2], Read::kRight) << "byte " << i;
  }
}

TEST_F(TierFlips, EachHourOfUseChangesNothing) {
  const SegmentShape shape = ShapeOfSegment(options_.shape, kFlipSegment);
  for (uint64_t bit = 0; bit < 32 * kRecords; ++bit) {
    for (const Read read :
         After("", SegmentFileName(0), shape.hour_at(0) + bit / 8, std::byte(1 << bit % 8))) {
      EXPECT_EQ(read, Read::kRight) << "bit " << bit;
    }
  }
}

TEST_F(TierFlips, EachBitOfAKeyFileIsAMissOfItsOwnersRecords) {
  const std::string name = KeyFileName(options_.secret, TestRecord::Owner(0));
  for (uint64_t bit = 0; bit < kKeyFileBytes * 8; ++bit) {
    for (const Read read : After("keys", name, bit / 8, std::byte(1 << bit % 8))) {
      EXPECT_EQ(read, Read::kNotThere) << "bit " << bit;
    }
  }
}

// It says when something was used last: a flip may make all of it look older than the TTL.
TEST_F(TierFlips, EachByteOfAboutJsonIsAMissOrNoChange) {
  const uint64_t bytes = BytesOf("", std::string(kAboutFileName));
  ASSERT_GT(bytes, 100u);
  for (uint64_t i = 0; i < bytes; ++i) {
    for (const std::byte change :
         {std::byte{0x01}, std::byte{0x08}, std::byte{0x20}, std::byte{0x80}}) {
      for (const Read read : After("", std::string(kAboutFileName), i, change)) {
        EXPECT_TRUE(read == Read::kRight || IsMiss(read)) << "byte " << i;
      }
    }
  }
}

}  // namespace
}  // namespace kvasir
