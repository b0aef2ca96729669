#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "kvasir/machine.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

class KeptLimitsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/limits-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string folder_;
};

TEST_F(KeptLimitsTest, AreThereForTheSameNumberOfThreads) {
  EXPECT_FALSE(KeptLimits(folder_, 3));
  const MachineLimits limits{.read_bytes_per_s = 2e10, .f32_flops_per_s = 3e11, .threads = 3};
  ASSERT_TRUE(KeepLimits(folder_, limits));
  const auto kept = KeptLimits(folder_, 3);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->read_bytes_per_s, 2e10);
  EXPECT_EQ(kept->f32_flops_per_s, 3e11);
  EXPECT_FALSE(KeptLimits(folder_, 4));
}

// Two servers with different --threads measure once each.
TEST_F(KeptLimitsTest, AreKeptForEachNumberOfThreads) {
  ASSERT_TRUE(KeepLimits(folder_, {.read_bytes_per_s = 2e10, .threads = 4}));
  ASSERT_TRUE(KeepLimits(folder_, {.read_bytes_per_s = 1e10, .threads = 2}));
  ASSERT_TRUE(KeepLimits(folder_, {.read_bytes_per_s = 3e10, .threads = 4}));
  const auto two = KeptLimits(folder_, 2), four = KeptLimits(folder_, 4);
  ASSERT_TRUE(two && four);
  EXPECT_EQ(two->read_bytes_per_s, 1e10);
  EXPECT_EQ(four->read_bytes_per_s, 3e10);
  std::ifstream file(fs::path(folder_) / "limits");
  EXPECT_EQ(std::count(std::istreambuf_iterator<char>(file), {}, '\n'), 4);
}

// What a server measures itself when no bench has run: in memory that its plan has.
TEST_F(KeptLimitsTest, KeepWhatAQuickMeasurementOfReadingFound) {
  EXPECT_FALSE(MeasureReading(2, (uint64_t{32} << 20) - 1));
  const auto measured = MeasureReading(2, uint64_t{32} << 20);
  ASSERT_TRUE(measured);
  EXPECT_EQ(measured->threads, 2u);
  EXPECT_GT(measured->read_bytes_per_s, 1e8);
  ASSERT_TRUE(KeepLimits(folder_, *measured));
  const auto kept = KeptLimits(folder_, 2);
  ASSERT_TRUE(kept);
  EXPECT_NEAR(kept->read_bytes_per_s, measured->read_bytes_per_s, 1);
  EXPECT_EQ(kept->f32_flops_per_s, 0);
}

#ifndef KVASIR_SANITIZED  // whose allocators reserve address space
// A server's plan has that memory and no more: what is refused is not measured, and ends nothing.
TEST(MeasureReadingDeathTest, TakesNoMoreMemoryThanItIsGiven) {
  const auto measure = [] {
    std::ifstream statm("/proc/self/statm");
    uint64_t pages = 0;
    statm >> pages;
    const uint64_t now = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const uint64_t least = uint64_t{32} << 20;
    const rlimit limit{now + least * 3 / 2, now + least * 3 / 2};
    if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(2);
    if (MeasureReading(1, UINT64_MAX)) std::_Exit(3);
    if (MeasureReading(1, least * 2)) std::_Exit(4);
    for (int i = 0; i < 3; ++i) {  // and it gives them back
      if (!MeasureReading(1, least)) std::_Exit(5);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(measure(), testing::ExitedWithCode(0), "");
}
#endif

TEST_F(KeptLimitsTest, IgnoresWhatItCannotHaveWritten) {
  ASSERT_TRUE(
      KeepLimits(folder_, {.read_bytes_per_s = 2e10, .f32_flops_per_s = 3e11, .threads = 3}));
  const fs::path path = fs::path(folder_) / "limits";
  std::ifstream file(path);
  const std::string good((std::istreambuf_iterator<char>(file)), {});
  const auto try_text = [&](const std::string& text) {
    std::ofstream(path) << text;
    return KeptLimits(folder_, 3).has_value();
  };
  EXPECT_TRUE(try_text(good));
  EXPECT_FALSE(try_text(""));
  EXPECT_FALSE(try_text("x" + good));
  EXPECT_FALSE(try_text(good.substr(0, good.find('\n') + 1) + " another processor\n3 5 5\n"));
  const std::string head = good.substr(0, good.find('\n', good.find('\n') + 1) + 1);
  EXPECT_TRUE(try_text(head + "3 5 5\n"));
  for (const char* numbers : {"3 -5 5", "3 0 5", "3 nan 5", "3 inf 5", "3 1e30 5", "3 5", "x"}) {
    EXPECT_FALSE(try_text(head + numbers + "\n")) << numbers;
  }
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_FALSE(KeptLimits(folder_, 3));
}

}  // namespace
}  // namespace kvasir
