// What DiskTier leaves in memory: keys and tokens of records are gone with them, and no core dump
// has any.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>

#include "base/memory_flags_for_test.h"
#include "tier/disk_tier.h"
#include "tier/tier_driver_for_test.h"
#include "tier/tier_folder_for_test.h"

namespace kvasir {
namespace {

using Read = TierDriver::Read;

class DiskTierMemory : public TierFolderTest {
 protected:
  DiskTierMemory() { options_.threads = 0; }

  // Looks in memory that is left out of dumps, which is all that the tier has of records.
  // (Sanitizers have terabytes of it.)
  static bool IsInMemory(std::span<const std::byte> bytes) {
    for (const auto& [begin, end] : RangesWithFlags({"dd", "wr"})) {
      const auto* first = reinterpret_cast<const std::byte*>(begin);
      const auto* last = reinterpret_cast<const std::byte*>(end);
      if (std::search(first, last, bytes.begin(), bytes.end()) != last) return true;
    }
    return false;
  }
  static bool MayLock(uint64_t bytes) {
    std::vector<std::byte> some(bytes);
    const bool may = mlock(some.data(), bytes) == 0;
    munlock(some.data(), bytes);
    return may;
  }
  static bool HasTokens(const TestRecord& record) {
    return IsInMemory(std::as_bytes(std::span(record.tokens)));
  }
  static bool HasKey(const TestRecord& record) {
    return IsInMemory(std::as_bytes(std::span(record.facts.name.key)));
  }

  RealStorage storage_;
};

TEST_F(DiskTierMemory, IsNotInDumpsAndItsKeysAreLocked) {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  GTEST_SKIP()
      << "skipped: ThreadSanitizer's own memory is left out of dumps too, and comes and goes";
#endif
#endif
  const uint64_t before = BytesWithFlags({"dd"});
  [[maybe_unused]] const uint64_t locked_before = BytesWithFlags({"dd", "lo"});
  const auto tier = DiskTier::Open(options_, storage_);
  ASSERT_TRUE(tier);
  [[maybe_unused]] const uint64_t keys = OwnerKeys::BytesFor(OwnerKeys::kMaxOwners);
  EXPECT_GE(BytesWithFlags({"dd"}) - before,
            DiskTier::IndexBytes(options_) + DiskTier::BufferBytes(options_));
#ifndef KVASIR_SANITIZED  // which makes mlock do nothing
  if (!MayLock(keys)) GTEST_SKIP() << "skipped: this system locks no memory (ulimit -l)";
  EXPECT_GE(BytesWithFlags({"dd", "lo"}) - locked_before, keys);
#endif
}

TEST_F(DiskTierMemory, HasTheTokensOfARecordOnlyWhileItIsWrittenAndItsKeyAsLongAsItIsThere) {
#ifdef KVASIR_SANITIZED
  GTEST_SKIP() << "skipped: a sanitizer's own memory is left out of dumps too";
#endif
  const auto opened = DiskTier::Open(options_, storage_);
  ASSERT_TRUE(opened);
  DiskTier& tier = **opened;
  TierDriver driver(tier, [&] { tier.RunPending(); });
  const TestRecord record(0, 0, 0, kTokens, kPayload), other(1, 0, 1, kTokens, kPayload);
  ASSERT_TRUE(driver.Write(record));
  ASSERT_TRUE(driver.Write(other));
  EXPECT_TRUE(HasTokens(record));
  EXPECT_TRUE(HasKey(record));
  ASSERT_TRUE(driver.Flush());
  EXPECT_FALSE(HasTokens(record));
  EXPECT_TRUE(HasKey(record));
  EXPECT_EQ(driver.ReadBack(record), Read::kRight);
  EXPECT_FALSE(HasTokens(record));
  ASSERT_TRUE(driver.Erase(record.facts.owner));
  EXPECT_FALSE(HasKey(record));
  EXPECT_TRUE(HasKey(other));
}

TEST_F(DiskTierMemory, HasNoTokensAfterAStart) {
#ifdef KVASIR_SANITIZED
  GTEST_SKIP() << "skipped: a sanitizer's own memory is left out of dumps too";
#endif
  const TestRecord record(0, 0, 0, kTokens, kPayload);
  {
    const auto tier = DiskTier::Open(options_, storage_);
    ASSERT_TRUE(tier);
    TierDriver driver(**tier, [&] { (*tier)->RunPending(); });
    ASSERT_TRUE(driver.Write(record));
    ASSERT_TRUE(driver.Flush());
  }
  const auto tier = DiskTier::Open(options_, storage_);
  ASSERT_TRUE(tier);
  EXPECT_TRUE((*tier)->Has(record.facts.name));
  EXPECT_TRUE(HasKey(record));
  EXPECT_FALSE(HasTokens(record));
}

}  // namespace
}  // namespace kvasir
