// DiskTier on a disk of which a call does not return, and with callbacks that throw.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <new>

#include "tier/blocking_storage_for_test.h"
#include "tier/disk_tier.h"
#include "tier/tier_driver_for_test.h"
#include "tier/tier_folder_for_test.h"

namespace kvasir {
namespace {

using std::chrono::milliseconds;
using Read = TierDriver::Read;

class DiskTierHang : public TierFolderTest, public testing::WithParamInterface<Blocked> {
 protected:
  DiskTierHang() { options_.num_buffers = 16; }

  void Open() {
    gate_ = std::make_shared<BlockingStorage::Gate>();
    storage_ = std::make_unique<BlockingStorage>(gate_);
    auto tier = DiskTier::Open(options_, *storage_);
    ASSERT_TRUE(tier) << tier.error().message;
    tier_ = std::move(*tier);
  }
  bool Close(milliseconds patience) {
    return DiskTier::Close(std::move(tier_), std::move(storage_), patience);
  }
  // Asks for a flush; the future gets its answer.
  std::future<Result<TierFlushed>> Flush() {
    const auto told = std::make_shared<std::promise<Result<TierFlushed>>>();
    auto answer = told->get_future();
    tier_->Flush([told](Result<TierFlushed> flushed) { told->set_value(std::move(flushed)); });
    return answer;
  }

  std::shared_ptr<BlockingStorage::Gate> gate_;
  std::unique_ptr<BlockingStorage> storage_;
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(DiskTierHang, AClosedTierLeavesWhatItStored) {
  Open();
  {
    TierDriver driver(*tier_);
    ASSERT_TRUE(driver.Write(Record(0, 0)));
    ASSERT_TRUE(driver.Flush());
  }
  EXPECT_TRUE(Close(milliseconds(20'000)));
  Open();
  TierDriver driver(*tier_);
  EXPECT_EQ(driver.ReadBack(Record(0, 0)), Read::kRight);
}

INSTANTIATE_TEST_SUITE_P(Each, DiskTierHang,
                         testing::Values(Blocked::kWrite, Blocked::kRead, Blocked::kSync));

TEST_P(DiskTierHang, CloseDoesNotWaitForACallThatDoesNotReturn) {
  Open();
  std::optional<TierDriver> driver(*tier_);
  ASSERT_TRUE(driver->Write(Record(0, 0)));
  ASSERT_TRUE(driver->Flush());
  driver.reset();
  const auto calls = std::make_shared<std::atomic<int>>(0);
  tier_->set_on_progress([calls] { ++*calls; });
  gate_->Block(GetParam());
  std::optional<ReadId> read;
  if (GetParam() == Blocked::kRead) {
    read = tier_->BeginRead(Record(0, 0).facts.name);
    ASSERT_TRUE(read);
  } else {
    const auto write = tier_->BeginWrite(Record(0, 1).Facts());
    ASSERT_TRUE(write);
    tier_->Seal(*write, Record(0, 1).payload);
    tier_->EndWrite(*write);
  }
  gate_->WaitForCall();
  // A read that hangs does not keep the writer from its work.
  auto flushed = Flush();
  if (GetParam() == Blocked::kRead) {
    EXPECT_TRUE(flushed.get());
    tier_->EndRead(*read, ReadEnd::kNotUsed);
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(Close(milliseconds(50)));
  const int calls_before = *calls;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  if (GetParam() != Blocked::kRead) {
    EXPECT_EQ(flushed.get().error().code, Code::kUnavailable);
  }
  // When the call returns after all, the threads end and take tier and storage with them.
  gate_->Block(Blocked::kNothing);
  gate_->WaitForEnd();
  EXPECT_EQ(*calls, calls_before);
  Open();
  TierDriver again(*tier_);
  EXPECT_EQ(again.ReadBack(Record(0, 0)), Read::kRight);
}

TEST_F(DiskTierHang, ACallbackThatThrowsIsCalledAgain) {
  Open();
  std::promise<Result<TierFlushed>> flushed;
  std::promise<Result<TierErased>> erased;
  int flush_calls = 0, erase_calls = 0, progress_calls = 0;
  tier_->set_on_progress([&] {
    ++progress_calls;
    throw std::bad_alloc();
  });
  ASSERT_TRUE(tier_->ReadyOwner(Record(0, 0).facts.owner));
  const auto write = tier_->BeginWrite(Record(0, 0).Facts());
  ASSERT_TRUE(write);
  tier_->Seal(*write, Record(0, 0).payload);
  tier_->EndWrite(*write);
  tier_->Flush([&](Result<TierFlushed> result) {
    if (++flush_calls < 3) throw std::bad_alloc();
    flushed.set_value(std::move(result));
  });
  const auto stored = flushed.get_future().get();
  ASSERT_TRUE(stored) << stored.error().message;
  EXPECT_EQ(stored->blocks, 1u);
  tier_->Erase(Record(0, 0).facts.owner, [&](Result<TierErased> result) {
    if (++erase_calls < 3) throw std::bad_alloc();
    erased.set_value(std::move(result));
  });
  const auto gone = erased.get_future().get();
  ASSERT_TRUE(gone) << gone.error().message;
  EXPECT_EQ(gone->blocks, 1u);
  EXPECT_TRUE(Close(milliseconds(20'000)));
  EXPECT_EQ(flush_calls, 3);
  EXPECT_EQ(erase_calls, 3);
  EXPECT_GT(progress_calls, 0);
}

TEST_F(DiskTierHang, ThreeSlowReadsInAMinuteMakeItBrokenHoweverManyWait) {
  options_.threads = 0;
  Open();
  TierDriver driver(*tier_, [&] { tier_->RunPending(); });
  for (uint32_t i = 0; i < 5; ++i) ASSERT_TRUE(driver.Write(Record(i, 0)));
  ASSERT_TRUE(driver.Flush());
  gate_->read_ns = 3'000'000'000;  // of two calls
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(tier_->Stats().state, TierStats::State::kOn);
    std::array<std::optional<ReadId>, 4> reads;
    for (auto& read : reads) {
      read = tier_->BeginRead(Record(i, 0).facts.name);
      ASSERT_TRUE(read);
    }
    tier_->RunPending();
    for (const auto& read : reads) {
      EXPECT_EQ(*read, *reads[0]);
      tier_->EndRead(*read, ReadEnd::kNotUsed);
    }
    EXPECT_EQ(tier_->Stats().fault_stalled, i + 1);
  }
  tier_->RunPending();
  EXPECT_EQ(tier_->Stats().state, TierStats::State::kBroken);
  EXPECT_FALSE(tier_->Has(Record(0, 0).facts.name));
  gate_->read_ns = 0;
  gate_->PassTime(61);
  tier_->RunPending();
  EXPECT_EQ(tier_->Stats().state, TierStats::State::kOn);
  EXPECT_EQ(driver.ReadBack(Record(0, 0)), Read::kRight);
}

TEST_F(DiskTierHang, SlowReadsThatLieFurtherApartAreOnlyCounted) {
  options_.threads = 0;
  Open();
  TierDriver driver(*tier_, [&] { tier_->RunPending(); });
  ASSERT_TRUE(driver.Write(Record(0, 0)));
  ASSERT_TRUE(driver.Flush());
  gate_->read_ns = 3'000'000'000;
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(driver.ReadBack(Record(0, 0)), Read::kRight);
    gate_->PassTime(30);
    tier_->RunPending();
  }
  EXPECT_EQ(tier_->Stats().fault_stalled, 4u);
  EXPECT_EQ(tier_->Stats().state, TierStats::State::kOn);
}

TEST_F(DiskTierHang, AReadThatDoesNotReturnMakesItBrokenUntilItDoes) {
  Open();
  TierDriver driver(*tier_);
  ASSERT_TRUE(driver.Write(Record(0, 0)));
  ASSERT_TRUE(driver.Flush());
  gate_->Block(Blocked::kRead);
  const auto read = tier_->BeginRead(Record(0, 0).facts.name);
  ASSERT_TRUE(read);
  gate_->WaitForCall();
  gate_->PassTime(6);
  EXPECT_TRUE(driver.WaitUntil([&] { return tier_->Stats().fault_stalled > 0; }));
  gate_->PassTime(10);
  const auto is_broken = [&] { return tier_->Stats().state == TierStats::State::kBroken; };
  EXPECT_TRUE(driver.WaitUntil(is_broken));
  EXPECT_EQ(tier_->Stats().fault_stalled, 1u);
  EXPECT_EQ(tier_->StateOf(*read), ReadState::kFailed);
  tier_->EndRead(*read, ReadEnd::kNotUsed);
  // It is opened anew when a read would be served again.
  gate_->PassTime(61);
  EXPECT_EQ(driver.Flush().error().code, Code::kUnavailable);  // the writer has tried
  EXPECT_TRUE(is_broken());
  gate_->Block(Blocked::kNothing);
  EXPECT_TRUE(driver.WaitUntil([&] { return !is_broken(); }));
  EXPECT_EQ(driver.ReadBack(Record(0, 0)), Read::kRight);
}

}  // namespace
}  // namespace kvasir
