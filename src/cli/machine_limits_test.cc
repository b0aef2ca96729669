#include "cli/machine_limits.h"

#include <gtest/gtest.h>

#include "base/memory_limit.h"
#include "base/sizes.h"
#include "kvasir/engine.h"
#include "source_paths.h"

namespace kvasir::cli {
namespace {

constexpr uint64_t kMib = uint64_t{1} << 20, kGib = uint64_t{1} << 30;
constexpr uint64_t kLeast = 256 * kMib;

class MachineLimitsTest : public testing::Test {
 protected:
  MachineLimitsTest() {
    options_.model = std::string(KVASIR_SOURCE_DIR) + "/models/kvasir-demo";
    options_.warn = [this](const std::string& text) { warnings_.push_back(text); };
  }
  Status Fit(uint64_t bytes) {
    return FitToMachine(args_, {bytes, "memory.max of a test"}, &options_);
  }
  uint64_t Need() const {
    const MemoryPlan plan = *Engine::PlanMemory(options_);
    return plan.total_bytes + plan.process_bytes;
  }

  Args args_;
  EngineOptions options_;
  std::vector<std::string> warnings_;
};

TEST_F(MachineLimitsTest, LeavesDefaultsWhereThereIsRoom) {
  ASSERT_TRUE(Fit(8 * kGib));
  EXPECT_EQ(options_.kv_memory_bytes, 2 * kGib);
  EXPECT_EQ(options_.request_memory_bytes, EngineOptions().request_memory_bytes);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(MachineLimitsTest, DefaultsTakeAtMostSixTenths) {
  for (const uint64_t limit :
       {kLeast, 320 * kMib, 400 * kMib, 512 * kMib, kGib, 2 * kGib, 4 * kGib}) {
    const EngineOptions before = options_;
    ASSERT_TRUE(Fit(limit)) << limit;
    EXPECT_LE(Need(), limit / 10 * 6) << limit;
    EXPECT_GE(Need(), limit / 10 * 5) << limit << ": more could be used";
    EXPECT_GE(options_.kv_memory_bytes, 8 * kMib);
    EXPECT_GE(options_.request_memory_bytes, 16 * kMib);
    EXPECT_TRUE(warnings_.empty());
    options_ = before;
  }
}

TEST_F(MachineLimitsTest, WithADiskTheDefaultsTakeAtMostSixTenthsToo) {
  options_.disk = DiskOptions{.folder = testing::TempDir() + "/kv", .cap_bytes = {}};
  const uint64_t usable = Engine::PlanMemory(options_)->tier_usable_bytes;
  for (const uint64_t limit : {kLeast, 320 * kMib, 400 * kMib, 512 * kMib, kGib, 2 * kGib}) {
    const EngineOptions before = options_;
    ASSERT_TRUE(Fit(limit)) << limit;
    EXPECT_LE(Need(), limit / 10 * 6) << limit;
    EXPECT_GE(Need(), limit / 2) << limit << ": more could be used";
    EXPECT_TRUE(warnings_.empty()) << warnings_[0];
    const MemoryPlan plan = *Engine::PlanMemory(options_);
    EXPECT_GT(plan.tier_usable_bytes, uint64_t{64} << 20) << limit;
    EXPECT_LE(plan.tier_usable_bytes, usable);
    EXPECT_FALSE(options_.disk->cap_bytes) << "a tenth of what is free may be less";
    options_ = before;
  }
  options_.disk->cap_bytes = kGib;
  args_.Set("disk-cap", {"1GiB"});
  ASSERT_TRUE(Fit(300 * kMib));
  EXPECT_EQ(Engine::PlanMemory(options_)->tier_usable_bytes, kGib) << "a flag is a promise";
}

TEST_F(MachineLimitsTest, TheFilesOfADiskThatIsMemoryAreCounted) {
  if (!IsInMemory("/dev/shm")) GTEST_SKIP() << "/dev/shm is not a tmpfs";
  for (const uint64_t limit : {kLeast, 512 * kMib, 2 * kGib}) {
    const EngineOptions before = options_;
    options_.disk = DiskOptions{.folder = "/dev/shm/is-not-there/kv", .cap_bytes = {}};
    ASSERT_TRUE(Fit(limit)) << limit;
    ASSERT_TRUE(options_.disk->cap_bytes);
    EXPECT_LE(Need() + *options_.disk->cap_bytes, limit / 10 * 6) << limit;
    EXPECT_GE(*options_.disk->cap_bytes, 16 * kMib);
    EXPECT_TRUE(warnings_.empty()) << warnings_[0];
    options_ = before;
  }
}

TEST_F(MachineLimitsTest, FilesThatDoNotFitIntoMemoryAreNamed) {
  if (!IsInMemory("/dev/shm")) GTEST_SKIP() << "/dev/shm is not a tmpfs";
  const std::string files =
      ", 1.00 GiB of it for the files of --disk, which lies in memory "
      "(--disk-cap), and this process may take ";
  options_.disk = DiskOptions{.folder = "/dev/shm/is-not-there/kv", .cap_bytes = kGib};
  const Status refused = Fit(kGib);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().field, "disk-cap");
  const std::string& text = refused.error().message;
  EXPECT_NE(text.find(files), std::string::npos) << text;
  EXPECT_NE(text.find("use a smaller --disk-cap"), std::string::npos) << text;
  ASSERT_TRUE(Fit(kGib + kGib / 2));
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find(files), std::string::npos) << warnings_[0];
}

TEST_F(MachineLimitsTest, WhereMemoryIsScarceOneGrammarIsCompiledAtATime) {
  ASSERT_TRUE(Fit(kGib));
  EXPECT_EQ(options_.grammar_compiles, 2u);
  options_ = {.model = options_.model};
  ASSERT_TRUE(Fit(kLeast));
  EXPECT_EQ(options_.grammar_compiles, 1u);
}

TEST_F(MachineLimitsTest, WithADraftModelTheDefaultsTakeAtMostSixTenthsToo) {
  options_.draft_model = options_.model;
  for (const uint64_t limit : {kLeast, 320 * kMib, 400 * kMib, 512 * kMib, kGib, 2 * kGib}) {
    const EngineOptions before = options_;
    ASSERT_TRUE(Fit(limit)) << limit;
    EXPECT_LE(Need(), limit / 10 * 6) << limit;
    EXPECT_GE(options_.draft_kv_memory_bytes, 2 * kMib);
    EXPECT_TRUE(warnings_.empty()) << warnings_[0];
    options_ = before;
  }
  args_.Set("draft-kv-memory", {"64MiB"});
  options_.draft_kv_memory_bytes = 64 * kMib;
  ASSERT_TRUE(Fit(400 * kMib));
  EXPECT_EQ(options_.draft_kv_memory_bytes, 64 * kMib);
}

TEST_F(MachineLimitsTest, WhatFlagsNameStaysAndIsWarnedOf) {
  args_.Set("kv-memory", {"1536MiB"});
  options_.kv_memory_bytes = 1536 * kMib;
  ASSERT_TRUE(Fit(2 * kGib));
  EXPECT_EQ(options_.kv_memory_bytes, 1536 * kMib);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find("may take 2.00 GiB (memory.max of a test): more than 60%"),
            std::string::npos)
      << warnings_[0];
}

TEST_F(MachineLimitsTest, BesideAGivenCacheTheOthersTakeLess) {
  args_.Set("kv-memory", {"16MiB"});
  options_.kv_memory_bytes = 16 * kMib;
  ASSERT_TRUE(Fit(300 * kMib));
  EXPECT_EQ(options_.kv_memory_bytes, 16 * kMib);
  EXPECT_LE(Need(), 180 * kMib);
  EXPECT_GE(options_.request_memory_bytes, 16 * kMib);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(MachineLimitsTest, MoreThanThereIsIsRefusedWithWhatFits) {
  args_.Set("kv-memory", {"4GiB"});
  options_.kv_memory_bytes = 4 * kGib;
  const Status refused = Fit(2 * kGib);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  const std::string mark = "the largest --kv-memory that fits is ";
  const size_t at = refused.error().message.find(mark);
  ASSERT_NE(at, std::string::npos) << refused.error().message;
  options_.kv_memory_bytes = std::stoull(refused.error().message.substr(at + mark.size())) * kMib;
  EXPECT_TRUE(Fit(2 * kGib));
  options_.kv_memory_bytes += 2 * kMib;
  EXPECT_FALSE(Fit(2 * kGib));
  args_.Set("allow-overcommit", {});
  warnings_.clear();
  EXPECT_TRUE(Fit(2 * kGib));
  EXPECT_EQ(warnings_.size(), 1u);
}

TEST_F(MachineLimitsTest, MoreThreadsThanProcessorsAreWarnedOf) {
  WarnOfThreads(options_);
  EXPECT_TRUE(warnings_.empty());
  options_.threads = 1000;
  WarnOfThreads(options_);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_TRUE(warnings_[0].starts_with("--threads 1000 is more than the ")) << warnings_[0];
}

}  // namespace
}  // namespace kvasir::cli
