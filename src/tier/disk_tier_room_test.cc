// What leaves a folder of the real disk by time and for free space. The clock, and how large the
// disk is and how much of it others take, are the test's.
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/hex.h"
#include "base/log.h"
#include "tier/disk_tier.h"
#include "tier/forget_intent.h"
#include "tier/spare_file.h"
#include "tier/tier_driver_for_test.h"
#include "tier/tier_folder_for_test.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using Read = TierDriver::Read;

constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

class SmallDisk : public RealStorage {
 public:
  int64_t passed_s = 0;      // since the test began
  uint64_t disk_bytes = 0;   // 0: the real disk
  uint64_t other_bytes = 0;  // of other programs

  int64_t UnixS() override { return 1'800'000'000 + passed_s; }  // the begin of an hour
  uint64_t MonotonicNs() override {
    return RealStorage::MonotonicNs() + static_cast<uint64_t>(passed_s) * 1'000'000'000;
  }
  IoResult<SpaceFacts> Space(FileId folder) override {
    IoResult<SpaceFacts> space = RealStorage::Space(folder);
    const IoResult<TreeFacts> tree = TreeBytes(folder, kSegmentPrefix);
    if (!space || !tree || disk_bytes == 0) return space;
    space->total_bytes = disk_bytes;
    space->free_bytes = disk_bytes - other_bytes - tree->whole_bytes - tree->other_bytes;
    return space;
  }
};

class DiskTierRoom : public TierFolderTest {
 protected:
  DiskTierRoom() {
    SetLogLevel(LogLevel::kError);
    options_.threads = 0;
    Start();
  }
  ~DiskTierRoom() override { tier_.reset(); }  // before its folder

  void Start() {
    tier_.reset();
    auto tier = DiskTier::Open(options_, storage_);
    ASSERT_TRUE(tier) << tier.error().message;
    tier_ = std::move(*tier);
    driver_ = std::make_unique<TierDriver>(*tier_, [this] { tier_->RunPending(); });
  }
  void Store(uint32_t first, uint32_t last) {
    for (uint32_t i = first; i < last; ++i) {
      ASSERT_TRUE(driver_->Write(Record(i), true)) << i;
      if (i % 50 == 0) {
        ASSERT_TRUE(driver_->Flush());
      }
    }
    ASSERT_TRUE(driver_->Flush());
  }
  void Pass(int64_t seconds) {
    storage_.passed_s += seconds;
    tier_->RunPending();
  }
  bool Has(uint32_t chain) const { return tier_->Has(Record(chain).facts.name); }
  std::vector<fs::path> Segments() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(options_.folder)) {
      if (ParseSegmentFileName(entry.path().filename().string())) files.push_back(entry.path());
    }
    return files;
  }
  // Counts the slots whose payload or header on the disk is not zeros.
  uint32_t SlotsInUse() const {
    uint32_t in_use = 0;
    for (const fs::path& path : Segments()) {
      std::ifstream in(path, std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(in), {}};
      const SegmentShape shape = ShapeOfSegment(options_.shape, bytes.size());
      const auto is_zero = [&](uint64_t at, uint64_t count) {
        return bytes.compare(at, count, std::string(count, '\0')) == 0;
      };
      for (uint32_t slot = 0; slot < shape.slots; ++slot) {
        in_use += is_zero(shape.header_at(slot), shape.record.header_bytes()) &&
                          is_zero(shape.payload_at(slot), shape.record.stride_bytes())
                      ? 0
                      : 1;
      }
    }
    return in_use;
  }

  SmallDisk storage_;
  std::unique_ptr<DiskTier> tier_;
  std::unique_ptr<TierDriver> driver_;
};

constexpr int64_t kHourS = 3600;

TEST_F(DiskTierRoom, WhatWasNotUsedForTheTtlIsPunched) {
  options_.ttl_hours = 2;
  Start();
  Store(0, 2);
  EXPECT_EQ(SlotsInUse(), 2u);
  Pass(2 * kHourS);
  EXPECT_TRUE(Has(0) && Has(1));
  tier_->Touch(Record(1).facts.name);
  Pass(kHourS);
  EXPECT_FALSE(Has(0));
  EXPECT_EQ(driver_->ReadBack(Record(1)), Read::kRight) << "it was used since";
  EXPECT_EQ(tier_->Stats().evicted_ttl, 1u);
  EXPECT_EQ(SlotsInUse(), 1u);
  Start();
  EXPECT_EQ(driver_->ReadBack(Record(1)), Read::kRight) << "the hour of its use was written";
}

TEST_F(DiskTierRoom, AStartPunchesWhatExpiredMeanwhile) {
  options_.ttl_hours = 2;
  Start();
  Store(0, 3);
  tier_.reset();
  storage_.passed_s += 3 * kHourS;
  Start();
  EXPECT_FALSE(Has(0) || Has(1) || Has(2));
  EXPECT_EQ(tier_->Stats().evicted_ttl, 3u);
  EXPECT_EQ(SlotsInUse(), 0u);
}

TEST_F(DiskTierRoom, AClockThatGoesBackKeepsNothingLonger) {
  options_.ttl_hours = 2;
  Start();
  Store(0, 1);
  Pass(2 * kHourS);
  tier_.reset();  // writes the hour
  storage_.passed_s = 0;
  Start();
  Store(1, 2);  // now is at least the hour that was written
  storage_.passed_s = 3 * kHourS;
  Start();
  EXPECT_FALSE(Has(0));
  EXPECT_TRUE(Has(1));
}

// Somebody has the folder's lock for a moment, as who writes a session has. Blocks wait for that:
// none is dropped or evicted.
TEST_F(DiskTierRoom, WaitsForWhoHasTheFoldersLock) {
  class Busy : public RealStorage {
   public:
    IoResult<bool> TryLock(FileId file) override {
      const IoResult<bool> locked = RealStorage::TryLock(file);
      if (locked && !*locked && ++refused_ == 3) held = {};
      return locked;
    }
    OpenedFile held;

   private:
    int refused_ = 0;
  };
  tier_.reset();
  Busy storage;
  options_.threads = 2;
  auto tier = DiskTier::Open(options_, storage);
  ASSERT_TRUE(tier) << tier.error().message;
  {
    const auto root = Own(storage_, storage_.OpenRoot(options_.folder));
    auto held = LockTierFolder(storage_, root->id());
    ASSERT_TRUE(held);
    storage.held = std::move(*held);
  }
  TierDriver driver(**tier);
  ASSERT_TRUE(driver.Write(Record(0)));
  const auto flushed = driver.Flush();
  ASSERT_TRUE(flushed) << flushed.error().message;
  EXPECT_EQ(flushed->blocks, 1u);
}

// The intent of a forget may name each slot of a store whose segments are as small as they may be.
TEST_F(DiskTierRoom, KeepsRoomForTheLargestIntent) {
  for (const uint64_t payload : {uint64_t{6000}, 4 * kMiB}) {
    options_.shape.payload_bytes = payload;
    options_.cap_bytes = kMaxDiskBlocks * options_.shape.slot_bytes();
    Start();
    ForgetIntent intent;
    for (uint32_t i = 0; i < kMaxDiskBlocks / 16; ++i) {
      intent.segments.push_back({i, i, std::vector<bool>(16, true)});
    }
    const uint64_t bytes = EncodeForgetIntent(options_.secret, {}, intent).size();
    EXPECT_GT(bytes, kSpareBytes);
    const auto root = Own(storage_, storage_.OpenRoot(options_.folder));
    EXPECT_GE(SpareOf(storage_, root->id(), kSpareName), kSpareBytes + bytes);
    tier_.reset();
    fs::remove_all(options_.folder);
  }
}

// A device that refuses a forget's intent, or the zeros, until the room that was kept is given
// back. What was erased before that counts too.
TEST_F(DiskTierRoom, AFullDeviceIsErasedInTheRoomThatWasKept) {
  class Full : public RealStorage {
   public:
    fs::path spare;
    bool refuses_writes = false, refuses_zeros = false;
    IoResult<uint64_t> WriteSome(FileId file, std::span<const std::byte> bytes,
                                 uint64_t offset) override {
      if (refuses_writes && fs::exists(spare)) return IoFailed(ENOSPC);
      return RealStorage::WriteSome(file, bytes, offset);
    }
    IoStatus PunchHole(FileId file, uint64_t offset, uint64_t bytes) override {
      if (refuses_zeros && fs::exists(spare)) return IoFailed(ENOSPC);
      return RealStorage::PunchHole(file, offset, bytes);
    }
  };
  for (const bool of_zeros : {false, true}) {
    tier_.reset();
    fs::remove_all(options_.folder);
    Full storage;
    storage.spare = fs::path(options_.folder) / kSpareName;
    const auto tier = DiskTier::Open(options_, storage);
    ASSERT_TRUE(tier) << tier.error().message;
    TierDriver driver(**tier, [&] { (*tier)->RunPending(); });
    for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(driver.Write(Record(0, i)));
    ASSERT_TRUE(driver.Flush());
    ASSERT_TRUE(fs::exists(storage.spare));
    storage.refuses_zeros = of_zeros;
    storage.refuses_writes = !of_zeros;
    const auto forgotten = driver.Forget(TierDriver::ForgetOf(Record(0, 1), 3));
    ASSERT_TRUE(forgotten) << forgotten.error().message;
    EXPECT_EQ(forgotten->blocks, 3u);
    EXPECT_TRUE(fs::exists(storage.spare)) << "it is kept again";
    const auto erased = driver.Erase(TestRecord::Owner(0));
    ASSERT_TRUE(erased) << erased.error().message;
    EXPECT_EQ(erased->blocks, 1u);
    EXPECT_TRUE((*tier)->CheckInvariants());
  }
}

// Less than 2 GiB free: segments go back until there is as much, the coldest first.
TEST_F(DiskTierRoom, ADiskThatFillsUpGetsSegmentsBack) {
  options_.reserve_bytes = 2 * kGiB;
  Start();
  storage_.disk_bytes = 4 * kGiB;
  storage_.other_bytes = kGiB;
  Store(0, 450);
  const size_t before = Segments().size();
  ASSERT_GE(before, 4u);
  EXPECT_EQ(tier_->Stats().blocks, 450u);
  // 2 GiB + 2.5 MiB are left to the tier and for free.
  storage_.other_bytes = 2 * kGiB - 5 * kMiB / 2;
  Pass(11);
  EXPECT_EQ(Segments().size(), 2u);
  const auto root = Own(storage_, storage_.OpenRoot(options_.folder));
  EXPECT_GE(storage_.Space(root->id())->free_bytes, 2 * kGiB);
  const TierStats stats = tier_->Stats();
  EXPECT_GT(stats.evicted_space, 0u);
  EXPECT_EQ(stats.evicted_space + stats.blocks, 450u);
  EXPECT_TRUE(tier_->CheckInvariants());

  const auto read_all = [this] {
    uint32_t opened = 0;
    for (uint32_t i = 0; i < 450; ++i) {
      if (!Has(i)) continue;
      EXPECT_EQ(driver_->ReadBack(Record(i)), Read::kRight) << i;
      ++opened;
    }
    return opened;
  };
  EXPECT_EQ(read_all(), stats.blocks);
  EXPECT_TRUE(Has(449));
  EXPECT_FALSE(Has(0));
  Start();
  EXPECT_EQ(read_all(), stats.blocks) << "a start finds the rest";

  Store(450, 550);
  EXPECT_EQ(Segments().size(), 2u) << "no growth: the coldest slots are used again";
  EXPECT_TRUE(Has(549));
  storage_.other_bytes = kGiB;
  Pass(11);
  Store(550, 850);
  EXPECT_GT(Segments().size(), 2u) << "there is room again";
}

// No room for a segment: the tier is full, says what is missing, and no flush says that all is
// stored. A tenth of a small device stays free.
TEST_F(DiskTierRoom, SaysThatNothingCanBeStored) {
  storage_.disk_bytes = kGiB;
  storage_.other_bytes = kGiB - 104 * kMiB;
  Start();
  EXPECT_EQ(tier_->Stats().state, TierStats::State::kOn) << "102.4 MiB stay free";
  Store(0, 10);
  EXPECT_TRUE(Has(9));
  storage_.other_bytes = kGiB - 100 * kMiB;
  Pass(11);
  TierStats stats = tier_->Stats();
  EXPECT_EQ(stats.state, TierStats::State::kFull) << stats.reason;
  EXPECT_NE(stats.reason.find("--disk-reserve"), std::string::npos) << stats.reason;
  EXPECT_GT(stats.missing_bytes, 2 * kMiB);
  EXPECT_LT(stats.missing_bytes, 5 * kMiB);
  std::optional<Result<TierFlushed>> flushed;
  tier_->Flush([&](Result<TierFlushed> answer) { flushed = std::move(answer); });
  Pass(1);
  ASSERT_TRUE(flushed);
  EXPECT_FALSE(*flushed);
  options_.reserve_bytes = 0;
  Start();
  EXPECT_EQ(tier_->Stats().state, TierStats::State::kOn);
  Store(10, 20);
  EXPECT_TRUE(Has(19));
}

// Sessions lie in the same folder: segments leave what they need of the cap.
TEST_F(DiskTierRoom, SegmentsLeaveWhatIsReserved) {
  options_.cap_bytes = 8 * kMiB;
  Start();
  Store(0, 1500);
  const size_t before = Segments().size();
  ASSERT_GE(before, 4u);
  tier_->Reserve(DiskTier::kSessionBytes);  // as much is left to them anyway
  Pass(2);
  EXPECT_EQ(Segments().size(), before);
  tier_->Reserve(DiskTier::kSessionBytes + 5 * kMiB / 2);
  Pass(2);
  EXPECT_LE(Segments().size(), before - 2);
  EXPECT_TRUE(Has(1499));
  EXPECT_TRUE(tier_->CheckInvariants());
  Store(1500, 1800);
  EXPECT_LE(Segments().size(), before - 2) << "and they do not come back";
}

}  // namespace
}  // namespace kvasir
