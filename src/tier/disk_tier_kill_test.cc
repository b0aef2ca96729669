// A process with a disk tier is killed at any moment: what a flush reported is found, and no record
// has other bytes than were written.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "base/random.h"
#include "tier/disk_tier.h"
#include "tier/tier_driver_for_test.h"
#include "tier/tier_folder_for_test.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using Read = TierDriver::Read;

constexpr uint32_t kChain = 20;
constexpr uint32_t kKillsOfAFolder = 5;  // then the day's budget of writes ends soon

TestRecord KillRecord(uint32_t number) {
  return TestRecord(number / kChain, number % kChain, number / kChain % 2, kTokens, kPayload);
}

// Writes records from `first` on and reports after each flush below which number all
// are stored. Never returns.
[[noreturn]] void Write(const DiskTierOptions& options, uint32_t first, uint64_t seed, int out) {
  Random random(seed);
  RealStorage storage;
  auto tier = DiskTier::Open(options, storage);
  if (!tier) _exit(2);
  TierDriver driver(**tier);
  for (uint32_t number = first;; ++number) {
    // A buffer may have to become free before.
    const auto written = [&] {
      const auto wrote = driver.Write(KillRecord(number), true);
      if (!wrote && wrote.error() != WriteRefusal::kNoBuffer) _exit(3);
      return wrote.has_value();
    };
    if (!driver.WaitUntil(written)) _exit(4);
    if (random.Below(12) != 0) continue;
    if (!driver.Flush()) _exit(5);
    const uint32_t stored = number + 1;
    if (write(out, &stored, sizeof(stored)) != sizeof(stored)) _exit(6);
  }
}

class DiskTierKill : public TierFolderTest {
 protected:
  DiskTierKill() { options_.cap_bytes = uint64_t{256} << 20; }

  // Kills a process that writes from `first` on; what its last flush reported.
  uint32_t WriteAndKill(uint32_t first, Random& random) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const uint64_t seed = random.Bits();
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      Write(options_, first, seed, ends[1]);
    }
    close(ends[1]);
    // After so many reports, and a little later than that: in the middle of whatever it does.
    uint32_t stored = first;
    const auto next = [&] {
      uint32_t report;
      const bool came = read(ends[0], &report, sizeof(report)) == sizeof(report);
      if (came) stored = report;
      return came;
    };
    for (uint64_t left = random.Below(8); left > 0 && next(); --left) {
    }
    for (uint64_t left = random.Below(4); left > 0; --left) poll(nullptr, 0, 1);
    EXPECT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it ended with " << WEXITSTATUS(status);
    while (next()) {
    }
    close(ends[0]);
    return stored;
  }
};

#ifndef KVASIR_SANITIZED  // a child of fork() starts threads, which ThreadSanitizer may not follow
TEST_F(DiskTierKill, WhatAFlushReportedIsFoundAndNothingElseIsServed) {
  const uint32_t kills = std::getenv("KVASIR_SLOW") != nullptr ? 300 : 20;
  Random random(20261124);
  uint32_t first = 0, all_stored = 0;
  std::map<uint32_t, uint32_t> promised;  // ranges of numbers that are stored
  for (uint32_t kill = 0; kill < kills; ++kill) {
    SCOPED_TRACE(kill);
    const uint32_t stored = WriteAndKill(first, random);
    if (stored > first) promised[first] = stored;
    all_stored += stored - first;
    RealStorage storage;
    auto tier = DiskTier::Open(options_, storage);
    ASSERT_TRUE(tier) << tier.error().message;
    EXPECT_TRUE((*tier)->CheckInvariants());
    TierDriver driver(**tier);
    for (const auto& [begin, end] : promised) {
      for (uint32_t number = begin; number < end; ++number) {
        ASSERT_EQ(driver.ReadBack(KillRecord(number)), Read::kRight) << number;
      }
    }
    for (uint32_t number = stored; number < stored + 200; ++number) {
      const Read read = driver.ReadBack(KillRecord(number));
      EXPECT_TRUE(read == Read::kRight || read == Read::kNotThere) << number;
    }
    first = (stored + 200 + kChain) / kChain * kChain;  // a chain that has no record yet
    if ((kill + 1) % kKillsOfAFolder != 0) continue;
    tier->reset();
    fs::remove_all(options_.folder);
    promised.clear();
  }
  EXPECT_GT(all_stored, kills * 10);
  RecordProperty("stored", static_cast<int>(all_stored));
  std::printf("%u kills, %u records that a flush reported: all found\n", kills, all_stored);
}
#endif

}  // namespace
}  // namespace kvasir
