#include "tier/store.h"

#include <gtest/gtest.h>

#include <memory>

#include "tier/disk_tier.h"
#include "tier/sim_storage_for_test.h"
#include "tier/tier_driver_for_test.h"

namespace kvasir {
namespace {

constexpr int64_t kOneHourS = 3600;

class StoreTest : public testing::Test {
 protected:
  StoreTest() {
    options_ = {.folder = "/sim/kv",
                .cap_bytes = uint64_t{1} << 20,
                .secret = Secret{1},
                .identity = Digest{2},
                .shape = {.block_tokens = kSmallTokens, .payload_bytes = kSmallPayload},
                .num_buffers = 4};
    auto made = Store::Create(options_, storage_);
    EXPECT_TRUE(made);
    store_ = std::move(*made);
  }

  // Adds a segment of free slots.
  void AddSegment() KV_REQUIRES(store_->mutex) {
    const SegmentHead head{.shape = ShapeOfSegment(options_.shape, 64 * 1024)};
    ASSERT_TRUE(store_->segments.Add(head));
  }
  // Adds a stored record, the way in which the writer makes one.
  EntryId AddRecord(uint32_t number, uint32_t owner) KV_REQUIRES(store_->mutex) {
    const auto id = store_->OwnerOf(TestRecord::Owner(owner));
    const auto entry = store_->records.Add(TestRecord::Name(0, number), *id, std::nullopt,
                                           store_->clock.NewOrder());
    const auto slot = store_->segments.TakeSlot();
    store_->keys.AddUse(*id);
    store_->records.SetStored(*entry, *slot);
    store_->segments.SetEntry(*slot, *entry);
    return *entry;
  }
  // Takes a buffer that reads the record, the way in which the reader takes one.
  uint32_t BeginRead(EntryId entry) KV_REQUIRES(store_->mutex) {
    const uint32_t index = *store_->FreeBuffer();
    const RecordIndex::Record& record = store_->records.at(entry);
    RecordBuffer& in = store_->buffers.at(index);
    in = {.use = RecordBuffer::Use::kReading,
          .entry = entry,
          .owner = record.owner,
          .slot = record.slot,
          .refs = 1};
    ++store_->queues.num_reads;
    store_->records.AddReader(entry);
    store_->segments.AddReader(record.slot);
    return index;
  }

  SimStorage storage_{1};
  DiskTierOptions options_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, TakesTheMemoryThatWasPlanned) {
  EXPECT_EQ(store_->index_arena.size() + OwnerKeys::BytesFor(OwnerKeys::kMaxOwners),
            Store::IndexBytes(options_));
  EXPECT_EQ(store_->buffer_arena.size(), Store::BufferBytes(options_));
  EXPECT_EQ(store_->buffers.size(), 4u);
}

TEST_F(StoreTest, PlansByTheCapAndByTheSizeOfRecords) {
  DiskTierOptions options = options_;
  options.num_buffers.reset();
  options.shape.payload_bytes = 6000;
  EXPECT_GE(Store::BufferBytes(options), uint64_t{31} << 20);
  EXPECT_LE(Store::BufferBytes(options), uint64_t{34} << 20);
  EXPECT_GT(Store::IndexBytes(options), Store::MaxRecords(options) * 80u);
  options.cap_bytes.reset();
  EXPECT_EQ(Store::MaxRecords(options), kMaxDiskBlocks);
  options.shape.payload_bytes = uint64_t{16} << 20;
  EXPECT_GE(Store::BufferBytes(options), 8 * (uint64_t{16} << 20));
}

TEST_F(StoreTest, GivesEachBufferOnceAndWipesItsTokens) {
  MutexLock lock(store_->mutex);
  for (uint32_t i = 0; i < 4; ++i) {
    const auto index = store_->FreeBuffer();
    ASSERT_TRUE(index);
    store_->buffers.at(*index).use = RecordBuffer::Use::kSealing;
    ++store_->queues.num_writes;
    store_->queues.next = *index + 1;
  }
  EXPECT_FALSE(store_->FreeBuffer());
  std::ranges::fill(store_->buffers.TokensOf(2), std::byte{7});
  store_->FreeBufferOf(2);
  EXPECT_EQ(store_->FreeBuffer(), 2u);
  EXPECT_EQ(store_->queues.num_writes, 3u);
  for (const std::byte byte : store_->buffers.TokensOf(2)) EXPECT_EQ(byte, std::byte{0});
}

TEST_F(StoreTest, EvictsTheColdestFirstAndPunchesOnlyWhatExpired) {
  MutexLock lock(store_->mutex);
  AddSegment();
  const SlotRef first = store_->records.at(AddRecord(0, 0)).slot;
  const SlotRef second = store_->records.at(AddRecord(1, 0)).slot;
  EXPECT_TRUE(store_->CheckInvariants());
  EXPECT_TRUE(store_->Evict(EvictCause::kTtl));
  EXPECT_FALSE(store_->records.Find(TestRecord::Name(0, 0)));
  EXPECT_EQ(store_->segments.state(first), SegmentTable::SlotState::kCondemned);
  EXPECT_TRUE(store_->Evict(EvictCause::kSpace));
  EXPECT_EQ(store_->segments.state(second), SegmentTable::SlotState::kFree);
  EXPECT_FALSE(store_->Evict(EvictCause::kCap)) << "it is empty";
  EXPECT_EQ(store_->figures.stats.evicted_ttl, 1u);
  EXPECT_EQ(store_->figures.stats.evicted_space, 1u);
  EXPECT_TRUE(store_->CheckInvariants());
}

TEST_F(StoreTest, CancelsTheReadsOfOneOwnerAlone) {
  MutexLock lock(store_->mutex);
  AddSegment();
  const EntryId mine = AddRecord(0, 0), other = AddRecord(1, 1);
  const uint32_t my_read = BeginRead(mine);
  store_->buffers.at(my_read).use = RecordBuffer::Use::kArrived;
  const uint32_t other_read = BeginRead(other);
  EXPECT_FALSE(store_->Evict(EvictCause::kCap)) << "both are read";
  store_->CancelReadsOf(*store_->keys.Find(TestRecord::Owner(0)));
  EXPECT_TRUE(store_->buffers.at(my_read).is_erased);
  EXPECT_FALSE(store_->buffers.at(other_read).is_cancelled);
  EXPECT_TRUE(store_->Evict(EvictCause::kCap));
  EXPECT_FALSE(store_->Evict(EvictCause::kCap));
  store_->ForgetReadsOf(other);
  EXPECT_FALSE(store_->buffers.at(other_read).is_cancelled) << "what was read stays good";
  EXPECT_TRUE(store_->Evict(EvictCause::kCap));
}

TEST_F(StoreTest, LeavesNothingUnderWay) {
  MutexLock lock(store_->mutex);
  AddSegment();
  const uint32_t read = BeginRead(AddRecord(0, 0));
  const uint32_t write = *store_->FreeBuffer();
  store_->buffers.at(write).use = RecordBuffer::Use::kQueued;
  ++store_->queues.num_writes;
  store_->queues.writes.PushBack(write);
  store_->Leave("a test");
  EXPECT_EQ(store_->state.reason, "a test");
  EXPECT_EQ(store_->records.num_stored(), 0u);
  EXPECT_FALSE(store_->keys.Find(TestRecord::Owner(0)));
  EXPECT_TRUE(store_->queues.writes.empty());
  EXPECT_EQ(store_->queues.num_writes, 0u);
  EXPECT_EQ(store_->figures.stats.dropped_failed, 1u);
  EXPECT_EQ(store_->buffers.at(read).use, RecordBuffer::Use::kFailed) << "EndRead frees it";
}

TEST_F(StoreTest, MustBeLeftAfterEightErrorsInAMinute) {
  const auto must_leave = [&] {
    MutexLock lock(store_->mutex);
    return store_->state.must_leave;
  };
  for (int i = 0; i < 8; ++i) {
    EXPECT_FALSE(must_leave()) << i;
    storage_.PassTime(10);
    store_->CountError(&TierStats::fault_write, EIO);
  }
  EXPECT_FALSE(must_leave()) << "they took more than a minute";
  store_->CountError(&TierStats::fault_write, ENOSPC);
  store_->CountError(&TierStats::fault_write, ENOSPC);
  EXPECT_TRUE(must_leave());
  MutexLock lock(store_->mutex);
  EXPECT_EQ(store_->LastErrorText(), ", last error: No space left on device");
  EXPECT_EQ(store_->figures.stats.fault_write, 10u);
}

TEST(ErrorWindow, CountsThreeStallsApartFromErrors) {
  using Kind = ErrorWindow::Kind;
  ErrorWindow window;
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(window.Count(Kind::kError, 0));
  EXPECT_FALSE(window.Count(Kind::kStall, 0));
  EXPECT_FALSE(window.Count(Kind::kStall, 0));
  EXPECT_TRUE(window.Count(Kind::kStall, 0));
  window.Clear();
  EXPECT_FALSE(window.Count(Kind::kError, 0));
}

TEST(UseClock, NeverGoesBack) {
  SimStorage storage(1);
  UseClock clock(storage);
  const uint32_t hour = clock.NowHour();
  const uint64_t order = clock.NewOrder();
  storage.JumpClock(-5 * kOneHourS);
  EXPECT_EQ(clock.NowHour(), hour);
  EXPECT_EQ(clock.NewOrder(), order + 1);
  storage.JumpClock(6 * kOneHourS);
  EXPECT_EQ(clock.NowHour(), hour + 1);
  EXPECT_EQ(clock.NewOrder() >> 32, hour + 1);
  clock.NotBefore(hour + 9);
  EXPECT_EQ(clock.NowHour(), hour + 9);
}

TEST(StoreFigures, LoadsAsFastAsReadingAndUnsealingOneAfterTheOther) {
  StoreFigures figures;
  figures.kept_bytes_per_s = 5;
  EXPECT_EQ(figures.load_bytes_per_s(), 5) << "nothing was measured yet";
  figures.read_bytes_per_s = 8;
  figures.open_bytes_per_s = 8;
  EXPECT_EQ(figures.load_bytes_per_s(), 4);
}

// The buffers give way first, to half of the memory; then the cap that no option names.
TEST(FitMemory, LowersWhatTheOptionsLeaveOpen) {
  const DiskTierOptions open{.folder = "/sim/kv",
                             .shape = {.block_tokens = 16, .payload_bytes = 16 << 10}};
  const auto takes = [](const DiskTierOptions& options) {
    return DiskTier::IndexBytes(options) + DiskTier::BufferBytes(options);
  };
  DiskTierOptions options = open;
  DiskTier::FitMemory(takes(open), &options);
  EXPECT_FALSE(options.num_buffers) << "it fits";
  EXPECT_EQ(options.default_cap_bytes, open.default_cap_bytes);
  for (const uint64_t bytes : {takes(open) / 2, takes(open) / 8, uint64_t{2} << 20}) {
    options = open;
    DiskTier::FitMemory(bytes, &options);
    EXPECT_LE(takes(options), bytes);
    EXPECT_GE(takes(options), bytes / 2) << "no less than that asks for";
    EXPECT_GE(options.planned_cap_bytes(), DiskTier::MinCapBytes(options.shape));
    EXPECT_LE(options.planned_cap_bytes(), open.planned_cap_bytes());
  }
  options = open;
  DiskTier::FitMemory(1, &options);
  EXPECT_EQ(options.num_buffers, Store::kMinBuffers);
  EXPECT_EQ(options.planned_cap_bytes(), DiskTier::MinCapBytes(options.shape));
  options = open;
  options.cap_bytes = uint64_t{1} << 30;
  DiskTier::FitMemory(1, &options);
  EXPECT_EQ(options.cap_bytes, uint64_t{1} << 30) << "somebody asked for it";
  EXPECT_EQ(options.num_buffers, Store::kMinBuffers);
}

}  // namespace
}  // namespace kvasir
