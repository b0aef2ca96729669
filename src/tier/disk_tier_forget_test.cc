// How long a forget holds up the engine's calls, since tokens wait for them. With KVASIR_SLOW,
// alone, the disk has as many records as its index keeps: 2^18, less what it evicts ahead.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "base/clock.h"
#include "tier/tier_folder_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kPath = 2000, kShared = 20'000;

class DiskTierForget : public TierFolderTest {
 protected:
  DiskTierForget() {
    options_.shape.payload_bytes = kSmallPayload;
    options_.cap_bytes = uint64_t{16} << 30;
    options_.reserve_bytes = 0;
  }
  static TestRecord Small(uint32_t chain, uint32_t number) {
    return TestRecord(chain, number, 0, kSmallTokens, kSmallPayload);
  }
  static void Write(TierDriver& driver, const TestRecord& record) {
    tl::expected<void, WriteRefusal> written;
    ASSERT_TRUE(driver.WaitUntil([&] {
      written = driver.Write(record);
      return written || written.error() != WriteRefusal::kNoBuffer;
    }));
    ASSERT_TRUE(written) << static_cast<int>(written.error());
  }

  RealStorage storage_;
};

TEST_F(DiskTierForget, HoldsUpNoCallOfTheEngine) {
  const bool is_slow = std::getenv("KVASIR_SLOW") != nullptr;
  const uint32_t records = is_slow ? 260'000 : 8192;
  const auto opened = DiskTier::Open(options_, storage_);
  ASSERT_TRUE(opened);
  DiskTier& tier = **opened;
  TierDriver driver(tier);
  for (uint32_t i = 0; i < records && !HasFatalFailure(); ++i) {
    Write(driver, Small(1 + i / kPath, i % kPath));
  }
  const TestRecord others(0, 0, 1, kSmallTokens, kSmallPayload);
  Write(driver, others);
  ASSERT_TRUE(driver.Flush());
  EXPECT_EQ(tier.Stats().blocks, records + 1);
  // All of the first chain but its first record; others need many blocks.
  ForgetFacts facts = TierDriver::ForgetOf(Small(1, kPath - 1), 5, kPath - 2);
  std::vector<BlockKey> kept;
  for (uint32_t i = 0; i < std::min(kShared, records / 2); ++i) {
    kept.push_back(TestRecord::Name(2 + i / kPath, i % kPath).key);
  }
  facts.kept = TierDriver::Keys(std::move(kept));
  std::atomic<bool> is_done = false;
  std::atomic<uint64_t> longest_ns = 0, calls = 0;
  std::thread engine([&] {
    const RecordName name = others.facts.name;
    while (!is_done) {
      const uint64_t begin_ns = MonotonicNs();
      EXPECT_TRUE(tier.Has(name));
      longest_ns = std::max<uint64_t>(longest_ns, MonotonicNs() - begin_ns);
      ++calls;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  const uint64_t begin_ns = MonotonicNs();
  const auto forgotten = driver.Forget(facts);
  const uint64_t end_ns = MonotonicNs();
  is_done = true;
  engine.join();
  ASSERT_TRUE(forgotten) << forgotten.error().message;
  EXPECT_EQ(forgotten->blocks, kPath - 1);
  EXPECT_GT(calls, 0u);
  std::printf("%u records: %.1f ms, the longest of %llu calls %.2f ms\n", records,
              static_cast<double>(end_ns - begin_ns) * 1e-6, static_cast<unsigned long long>(calls),
              static_cast<double>(longest_ns) * 1e-6);
  if (is_slow) {
    EXPECT_LT(longest_ns, 20'000'000u);
  }
}

}  // namespace
}  // namespace kvasir
