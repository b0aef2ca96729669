#include "remote/remote_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tier/tier_driver_for_test.h"

namespace kvasir {
namespace {

RemoteTierOptions SmallStore() {
  return {.memory_bytes = 64 * 1024,
          .shape = {.block_tokens = 16, .payload_bytes = 600},
          .num_names = 64};
}

TEST(RemoteStore, OneOutageOpensTheBreakerOnce) {
  auto store = RemoteStore::Create(SmallStore());
  ASSERT_TRUE(store);
  const auto retry_ns = [&] {
    MutexLock lock((*store)->mutex);
    return (*store)->breaker.retry_ns();
  };
  (*store)->TurnOff("the reader's error");
  const uint64_t first = retry_ns();
  (*store)->TurnOff("the writer's error");
  (*store)->TurnOff("the looker's error");
  EXPECT_EQ(retry_ns(), first);
}

TEST(RemoteStore, AnOwnersPlaceIsTakenInTurn) {
  auto store = RemoteStore::Create(SmallStore());
  ASSERT_TRUE(store);
  MutexLock lock((*store)->mutex);
  for (uint32_t i = 0; i < RemoteStore::kMaxOwners + 3; ++i) {
    ASSERT_TRUE((*store)->OwnerOf(TestRecord::Owner(i))) << i;
  }
  for (uint32_t i = 0; i < RemoteStore::kMaxOwners + 3; ++i) {
    const bool left = i < 3;
    EXPECT_EQ((*store)->owner_keys.Find(TestRecord::Owner(i)).has_value(), !left) << i;
  }
  // No machine has erased them: only their blocks go, and nothing is noted.
  ASSERT_EQ((*store)->erased.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*store)->erased[i], ErasedOwner{.owner = TestRecord::Owner(i)}) << i;
  }
}

TEST(RemoteStore, ADayHasSoManyBytes) {
  RemoteTierOptions options = SmallStore();
  const uint64_t value = options.value_bytes();
  options.daily_bytes = 4 * value;
  auto made = RemoteStore::Create(options);
  ASSERT_TRUE(made);
  RemoteStore& store = **made;
  MutexLock lock(store.mutex);
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(store.IsOverDaily(true)) << i;
    EXPECT_EQ(store.IsOverDaily(false), i >= 2) << i;
    const uint32_t index = *store.FreeBuffer();  // as RemoteWriter does
    store.buffers[index].use = RemoteBuffer::Use::kQueued;
    ++store.num_writes;
    store.EndWrite(index, true);
  }
  EXPECT_TRUE(store.IsOverDaily(true));
  EXPECT_EQ(store.stats.written_today_bytes, 4 * value);
  store.written_day -= 1;  // a day later
  EXPECT_FALSE(store.IsOverDaily(false));
  EXPECT_EQ(store.stats.written_today_bytes, 0u);
  store.num_writes = 2;  // what is on its way counts too
  EXPECT_TRUE(store.IsOverDaily(false));
  EXPECT_FALSE(store.IsOverDaily(true));
}

TEST(RemoteEpochs, NeverKeepALowerOne) {
  std::string pattern = testing::TempDir() + "/kvasir-epochs-XXXXXX";
  const std::string folder = mkdtemp(pattern.data());
  RemoteEpochs epochs(folder);
  EXPECT_EQ(epochs.Read("a/b"), 0u);
  epochs.Write("a/b", 5);
  epochs.Write("a/b", 4);
  EXPECT_EQ(epochs.Read("a/b"), 5u);
  epochs.Write("a/b", 6);
  EXPECT_EQ(RemoteEpochs(folder).Read("a/b"), 6u);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvasir
