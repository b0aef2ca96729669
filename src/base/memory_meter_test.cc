#include "base/memory_meter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace kvasir {
namespace {

TEST(MemoryMeter, CountsWhatIsAllocatedAndNoLongerWhatIsFreed) {
  MemoryQuota quota(8 << 20);
  {
    MemoryMeter meter(quota);
    for (int i = 0; i < 100; ++i) {
      std::string text(1 << 20, 'x');
      EXPECT_GE(meter.peak_bytes(), 1u << 20);
    }
    EXPECT_LT(meter.peak_bytes(), 2u << 20);
    EXPECT_GT(quota.taken_bytes(), 0u);
  }
  EXPECT_EQ(quota.taken_bytes(), 0u);
}

TEST(MemoryMeter, ThrowsBeyondTheQuotaAndEverythingIsGivenBack) {
  MemoryQuota quota(4 << 20);
  MemoryMeter meter(quota);
  std::vector<std::unique_ptr<int>> many;
  EXPECT_THROW(for (int i = 0; i < 10'000'000; ++i) many.push_back(std::make_unique<int>(i)),
               QuotaSpent);
  EXPECT_LE(meter.peak_bytes(), 4u << 20);
  many.clear();
  many.shrink_to_fit();
  const QuotaShare rest = meter.Stop();
  EXPECT_LT(quota.taken_bytes(), 64u << 10);
  const std::string after(16 << 20, 'x');  // no longer counted
}

TEST(MemoryMeter, OneLargeAllocationIsRefusedBeforeItIsTouched) {
  MemoryQuota quota(1 << 20);
  MemoryMeter meter(quota);
  EXPECT_THROW(std::vector<char>(size_t{1} << 30), QuotaSpent);
  EXPECT_EQ(meter.peak_bytes(), 0u);
}

TEST(MemoryMeter, WhoCanGoOnWithoutMemoryGetsNone) {
  MemoryQuota quota(1 << 20);
  MemoryMeter meter(quota);
  const std::unique_ptr<char[]> none(new (std::nothrow) char[4 << 20]);
  EXPECT_EQ(none, nullptr);
  EXPECT_THROW(std::vector<char>(2 << 20), QuotaSpent);  // nothrow did not open the reserve
  // std::stable_sort requests a buffer with nothrow, and can sort without it.
  std::vector<int> numbers(200'000);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int>(i * 7919 % 200'003);
  std::stable_sort(numbers.begin(), numbers.end());
  EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
}

TEST(MemoryMeter, WhatOutlivesItStaysTakenAsLongAsTheShare) {
  MemoryQuota quota(8 << 20);
  std::string result;
  {
    QuotaShare share;
    {
      MemoryMeter meter(quota);
      result.assign(2 << 20, 'x');
      share = meter.Stop();
    }
    EXPECT_GE(quota.taken_bytes(), 2u << 20);
    EXPECT_LT(quota.taken_bytes(), 3u << 20);
    QuotaShare moved = std::move(share);
    EXPECT_GE(quota.taken_bytes(), 2u << 20);
  }
  EXPECT_EQ(quota.taken_bytes(), 0u);
}

TEST(MemoryMeter, FreeingWhatWasThereBeforeGivesNoMoreThanTheQuota) {
  MemoryQuota quota(1 << 20);
  auto before = std::make_unique<std::string>(4 << 20, 'x');
  MemoryMeter meter(quota);
  before.reset();
  EXPECT_THROW(std::string(2 << 20, 'x'), QuotaSpent);
  EXPECT_TRUE(meter.never_fits());
  const QuotaShare share = meter.Stop();
  EXPECT_EQ(quota.taken_bytes(), 0u);
}

TEST(MemoryMeter, MetersOfSeveralThreadsShareAQuota) {
  MemoryQuota quota(16 << 20);
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        MemoryMeter meter(quota);
        try {
          std::vector<std::string> texts;
          for (int j = 0; j < 12; ++j) texts.emplace_back(1 << 20, 'x');
        } catch (const QuotaSpent&) {
          ++refused;
        }
        EXPECT_LE(quota.taken_bytes(), quota.max_bytes());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(quota.taken_bytes(), 0u);
}

}  // namespace
}  // namespace kvasir
