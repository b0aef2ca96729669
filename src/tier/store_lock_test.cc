// A store's lock, while others look whether it is locked.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/hex.h"
#include "tier/disk_tier.h"
#include "tier/erase_files.h"
#include "tier/store_files.h"
#include "tier/tier_folder_for_test.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

// A disk on which the first tries to lock a file fail, as if another process looked at that moment.
class LookedAt : public RealStorage {
 public:
  int refused = 0, pauses = 0;
  IoResult<bool> TryLock(FileId file) override {
    if (refused > 0) {
      --refused;
      return false;
    }
    return RealStorage::TryLock(file);
  }
  void Pause(uint64_t) override { ++pauses; }
};

class StoreLock : public TierFolderTest {
 protected:
  StoreLock() {
    options_.threads = 0;
    options_.num_buffers = 16;
  }
};

TEST_F(StoreLock, AStartTriesAgainForAMomentAndThenWaits) {
  LookedAt storage;
  for (const int refused : {0, 1, 5, 1000}) {
    storage.refused = refused;
    const auto tier = DiskTier::Open(options_, storage);
    ASSERT_TRUE(tier) << tier.error().message;
    EXPECT_EQ((*tier)->Stats().state,
              refused < 1000 ? TierStats::State::kOn : TierStats::State::kWaiting)
        << refused;
  }
  EXPECT_LT(storage.pauses, 20);
}

TEST_F(StoreLock, AnEraseTriesAgainForAMoment) {
  LookedAt storage;
  {
    const auto tier = DiskTier::Open(options_, storage);
    ASSERT_TRUE(tier);
  }
  const std::string store = ToHex(StoreIdOf(options_.secret, options_.identity));
  const OpenedFile root(storage, *storage.OpenRoot(options_.folder));
  std::ofstream(fs::path(options_.folder) / store / "keys" / std::string(64, 'a')) << "x";
  storage.refused = 3;
  const auto erased = EraseInStores(storage, root.id(), options_.secret, std::string(64, 'a'), "",
                                    EraseScope::kStoresWithKey);
  ASSERT_TRUE(erased);
  EXPECT_EQ(erased->locked_stores, 0u);
  EXPECT_TRUE(fs::is_empty(fs::path(options_.folder) / store / "keys"));
}

TEST_F(StoreLock, ThoseWhoLookDoNotSeeEachOther) {
  RealStorage storage;
  {
    const auto tier = DiskTier::Open(options_, storage);
    ASSERT_TRUE(tier);
  }
  const std::string store = ToHex(StoreIdOf(options_.secret, options_.identity));
  const OpenedFile root(storage, *storage.OpenRoot(options_.folder));
  const OpenedFile folder(storage, *storage.OpenFolder(root.id(), store));
  const auto open = [&] {
    return OpenedFile(storage, *storage.OpenFile(folder.id(), "lock", OpenMode::kWrite));
  };
  const OpenedFile first = open();
  EXPECT_FALSE(storage.IsLocked(first.id()).value_or(true));
  EXPECT_FALSE(IsStoreLocked(storage, root.id(), store).value_or(true));
}

TEST_F(StoreLock, AStartIsOnWhileOthersLook) {
  RealStorage storage;
  (void)DiskTier::Open(options_, storage);
  const std::string store = ToHex(StoreIdOf(options_.secret, options_.identity));
  std::atomic<bool> ends = false;
  std::thread looks([&] {
    const OpenedFile root(storage, *storage.OpenRoot(options_.folder));
    while (!ends) {
      (void)IsStoreLocked(storage, root.id(), store);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  for (int i = 0; i < 50; ++i) {
    const auto tier = DiskTier::Open(options_, storage);
    ASSERT_TRUE(tier);
    EXPECT_EQ((*tier)->Stats().state, TierStats::State::kOn) << i;
  }
  ends = true;
  looks.join();
}

}  // namespace
}  // namespace kvasir
