// What a machine erases because another one of its fleet has.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "remote/remote_on_fake_for_test.h"

namespace kvasir {
namespace {

// What a machine that was off, or cut off, has to erase when it reaches the store.
class RemoteErasedMeanwhile : public RemoteTierOnFake {
 protected:
  RemoteErasedMeanwhile() {
    std::string pattern = testing::TempDir() + "/kvasir-epochs-XXXXXX";
    options_ = SmallOptions(fake_.address());
    options_.has_disk = true;
    options_.epochs = mkdtemp(pattern.data());
  }
  ~RemoteErasedMeanwhile() override { std::filesystem::remove_all(options_.epochs); }
  // Erases the owner as another machine, and returns its epoch.
  uint64_t EraseElsewhere() {
    RemoteTierOptions other = options_;
    other.epochs.clear();
    other.has_disk = false;
    other.owners.clear();
    auto opened = RemoteTier::Open(other);
    TierDriver driver(**opened);
    EXPECT_TRUE(
        driver.WaitUntil([&] { return (*opened)->Remote().state == RemoteStats::State::kOn; }));
    const auto erased = driver.Erase(TestRecord::Owner(0));
    EXPECT_TRUE(erased);
    return erased ? erased->remote->epoch : 0;
  }
  std::vector<ErasedOwner> Erased(uint64_t epoch, bool elsewhere = true) {
    return {{.owner = TestRecord::Owner(0), .epoch = epoch, .elsewhere = elsewhere}};
  }
  RemoteTierOptions options_;
};

TEST_F(RemoteErasedMeanwhile, WhatTheDiskHasIsErasedAtTheStartAndUntilThatIsDone) {
  Open(options_);
  tier_.reset();
  const uint64_t epoch = EraseElsewhere();
  options_.owners = {TestRecord::Owner(0)};
  for (int start = 0; start < 4; ++start) {
    auto opened = RemoteTier::Open(options_);
    ASSERT_TRUE(opened);
    // The start has waited for it: no request is needed.
    const auto expected = start < 3 ? Erased(epoch) : std::vector<ErasedOwner>();
    EXPECT_EQ((*opened)->TakeErased(), expected) << start;
    if (start == 2) (*opened)->NoteErased(Erased(epoch)[0]);
  }
}

TEST_F(RemoteErasedMeanwhile, WhatCouldNotBeErasedIsTriedAgain) {
  options_.again_ns = 300'000'000;
  Open(options_);
  const uint64_t epoch = EraseElsewhere();
  driver_->Look(FaultRecord(0, 0));
  std::vector<ErasedOwner> erased = tier_->TakeErased();
  ASSERT_EQ(erased, Erased(epoch));
  tier_->EraseAgain(erased[0]);
  EXPECT_TRUE(tier_->TakeErased().empty());
  ASSERT_TRUE(driver_->WaitUntil([&] {
    erased = tier_->TakeErased();
    return !erased.empty();
  }));
  EXPECT_EQ(erased, Erased(epoch, false)) << "sessions that were made since then stay";
  EXPECT_EQ(
      RemoteEpochs(options_.epochs).Read(FleetKeys(options_.fleet).OwnerName(TestRecord::Owner(0))),
      1u);
}

TEST_F(RemoteErasedMeanwhile, WhatWasReadWhileTheStoreWasAwayIsErasedToo) {
  // Another process of this machine has noted the epoch already.
  Open(options_);
  tier_.reset();
  const uint64_t epoch = EraseElsewhere();
  RemoteEpochs(options_.epochs)
      .Write(FleetKeys(options_.fleet).OwnerName(TestRecord::Owner(0)), epoch);
  options_.has_disk = false;
  std::atomic<bool> is_away = true;
  fake_.Answer([&](const FakeWords&) -> std::optional<std::string> {
    return is_away ? std::optional(RedisFake::kHangUp) : std::nullopt;
  });
  auto opened = RemoteTier::Open(options_);
  ASSERT_TRUE(opened);
  ASSERT_TRUE((*opened)->ReadyOwner(TestRecord::Owner(0)));  // and computes for it
  is_away = false;
  TierDriver driver(**opened);
  std::vector<ErasedOwner> erased;
  ASSERT_TRUE(driver.WaitUntil([&] {
    erased = (*opened)->TakeErased();
    return !erased.empty();
  }));
  EXPECT_EQ(erased, Erased(epoch));
  fake_.Answer({});
}

// It was erased before this machine knew it: what the machine keeps of it is of later.
TEST_F(RemoteErasedMeanwhile, OfAnOwnerThatIsNewHereOnlyBlocksAreErased) {
  Open(options_);
  tier_.reset();
  const uint64_t epoch = EraseElsewhere();
  options_.epochs += "/other";
  std::atomic<bool> is_away = true;
  fake_.Answer([&](const FakeWords&) -> std::optional<std::string> {
    while (is_away) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return std::nullopt;
  });
  auto opened = RemoteTier::Open(options_);  // it waits for the store half a second
  ASSERT_TRUE(opened);
  ASSERT_TRUE((*opened)->ReadyOwner(TestRecord::Owner(0)));
  is_away = false;
  TierDriver driver(**opened);
  std::vector<ErasedOwner> erased;
  ASSERT_TRUE(driver.WaitUntil([&] {
    erased = (*opened)->TakeErased();
    return !erased.empty();
  }));
  EXPECT_EQ(erased, Erased(epoch, false));
  fake_.Answer({});
}

TEST_F(RemoteErasedMeanwhile, AMachineThatHasNothingErasesNothing) {
  Open(options_);
  tier_.reset();
  EraseElsewhere();
  options_.epochs += "/other";
  Open(options_);
  EXPECT_TRUE(tier_->TakeErased().empty());
  EXPECT_TRUE(driver_->Write(FaultRecord(0, 0)));
}

// Blocks of before must not be written under the key of after.
TEST_F(RemoteErasedMeanwhile, NothingIsWrittenUntilTheCacheHasForgotten) {
  Open(options_);
  const uint64_t epoch = EraseElsewhere();
  driver_->Look(FaultRecord(0, 0));
  EXPECT_EQ(driver_->Write(FaultRecord(0, 0)).error(), WriteRefusal::kNoBuffer);
  EXPECT_EQ(tier_->TakeErased(), Erased(epoch));
  EXPECT_EQ(driver_->Write(FaultRecord(0, 0)).error(), WriteRefusal::kNoBuffer);
  tier_->EraseHere(TestRecord::Owner(0), [](const Result<TierErased>&) {});
  EXPECT_TRUE(driver_->Write(FaultRecord(0, 0)));
}

}  // namespace
}  // namespace kvasir
