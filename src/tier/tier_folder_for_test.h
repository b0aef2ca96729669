// TierFolderTest: a disk tier of small records in a temporary folder of the real disk.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tier/disk_tier.h"
#include "tier/tier_driver_for_test.h"

namespace kvasir {

inline constexpr uint32_t kTokens = 16;     // of a record
inline constexpr uint64_t kPayload = 6000;  // bytes of it

inline TestRecord Record(uint32_t chain, uint32_t number = 0, uint32_t owner = 0) {
  return TestRecord(chain, number, owner, kTokens, kPayload);
}

class TierFolderTest : public testing::Test {
 protected:
  TierFolderTest() {
    std::string pattern = testing::TempDir() + "/kvasir-tier-XXXXXX";
    parent_ = mkdtemp(pattern.data());
    options_ = {.folder = parent_ / "kv",
                .cap_bytes = uint64_t{8} << 20,
                .secret = Secret{1, 2, 3},
                .identity = Digest{4, 5, 6},
                .shape = {.block_tokens = kTokens, .payload_bytes = kPayload},
                .model = "test",
                .kv_format = "f16"};
  }
  ~TierFolderTest() override { std::filesystem::remove_all(parent_); }

  std::filesystem::path parent_;  // of the tier's folder
  DiskTierOptions options_;
};

}  // namespace kvasir
