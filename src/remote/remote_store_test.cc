#include "remote/remote_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/clock.h"
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
    return (*store)->state.breaker.retry_ns();
  };
  (*store)->TurnOff("the reader's error");
  const uint64_t first = retry_ns();
  (*store)->TurnOff("the writer's error");
  (*store)->TurnOff("the looker's error");
  EXPECT_EQ(retry_ns(), first);
}

TEST(RemoteStore, MachinesDoNotComeBackAtOnce) {
  uint64_t most_late_ns = 0;
  for (int i = 0; i < 8; ++i) {
    auto store = RemoteStore::Create(SmallStore());
    ASSERT_TRUE(store);
    (*store)->TurnOff("an outage of all");
    const uint64_t soonest_ns = MonotonicNs() + RemoteBreaker::kFirstNs;
    MutexLock lock((*store)->mutex);
    const uint64_t retry_ns = (*store)->state.breaker.retry_ns();
    most_late_ns = std::max(most_late_ns, retry_ns - std::min(retry_ns, soonest_ns));
  }
  EXPECT_GT(most_late_ns, 0u);
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
  ASSERT_EQ((*store)->erasures.due.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*store)->erasures.due[i], ErasedOwner{.owner = TestRecord::Owner(i)}) << i;
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
    store.buffers[index].bytes = value;
    ++store.queues.num_writes;
    store.EndWrite(index, true);
  }
  EXPECT_TRUE(store.IsOverDaily(true));
  EXPECT_EQ(store.figures.stats.written_today_bytes, 4 * value);
  store.figures.written_day -= 1;  // a day later
  EXPECT_FALSE(store.IsOverDaily(false));
  EXPECT_EQ(store.figures.stats.written_today_bytes, 0u);
  store.queues.num_writes = 2;  // what is on its way counts too
  EXPECT_TRUE(store.IsOverDaily(false));
  EXPECT_FALSE(store.IsOverDaily(true));
}

TEST(RemoteStore, TakesWhatIsPlanned) {
  for (const uint32_t num_codecs : {0u, 1u, PlaneCodecs::kMost}) {
    RemoteTierOptions options = SmallStore();
    options.num_codecs = num_codecs;
    const auto store = RemoteStore::Create(options);
    ASSERT_TRUE(store);
    const Arena& buffers = (*store)->buffer_arena;
    EXPECT_EQ(buffers.used(), buffers.size());
    EXPECT_EQ(RemoteStore::BufferBytes(options), buffers.size());
    options.num_codecs = 0;
    EXPECT_EQ(RemoteStore::BufferBytes(options) +
                  num_codecs * PlaneCodec::MemoryBytes(options.shape.payload_bytes),
              buffers.size());
  }
}

TEST(RemoteStore, CompressesF16WhereTheStoreIsSlow) {
  RemoteTierOptions options = SmallStore();
  options.num_codecs = 1;
  for (const auto when : {CompressWhen::kNever, CompressWhen::kWhereSlow, CompressWhen::kAlways}) {
    options.compresses = when;
    auto made = RemoteStore::Create(options);
    ASSERT_TRUE(made);
    RemoteStore& store = **made;
    MutexLock lock(store.mutex);
    for (const double bytes_per_s : {450e6, 550e6}) {
      store.figures.wire_bytes_per_s = bytes_per_s;
      EXPECT_EQ(store.Compresses(), when == CompressWhen::kAlways ||
                                        (when == CompressWhen::kWhereSlow && bytes_per_s < 500e6));
    }
    // A value that comes at half its length, at 400 MB/s: KV comes twice as fast.
    const uint64_t bytes = store.options.value_bytes() / 2;
    for (int i = 0; i < 1000; ++i) {
      store.ObserveValue(static_cast<uint64_t>(static_cast<double>(bytes) / 0.4), bytes);
    }
    EXPECT_NEAR(store.figures.wire_bytes_per_s, 400e6, 10e6);
    EXPECT_NEAR(store.figures.load_bytes_per_s, 800e6, 20e6);
  }
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

TEST(RemoteEpochs, AreRefusedUnlessTheyAreWhole) {
  std::string pattern = testing::TempDir() + "/kvasir-epochs-XXXXXX";
  const std::string folder = mkdtemp(pattern.data());
  RemoteEpochs epochs(folder);
  const auto put = [&](const std::string& text) { std::ofstream(folder + "/b") << text; };
  // A half, garbage, a newer version's, another file's.
  for (const std::string text :
       {"", "12", "123", "\n", "x\n", "123x\n", "123\n4", "123\n\n", "-1\n", " 123\n", "v2 123\n",
        "123 456\n", "99999999999999999999\n", "1111111111111111111111111111111111111111\n"}) {
    put(text);
    const auto read = epochs.Read("a/b");
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().code, Code::kCorruption);
    EXPECT_NE(read.error().message.find(folder + "/b is not a number and a line's end"),
              std::string::npos);
  }
  epochs.Write("a/b", 7);
  EXPECT_EQ(epochs.Read("a/b"), 7u);
  put("18446744073709551615\n");
  EXPECT_EQ(epochs.Read("a/b"), UINT64_MAX);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvasir
