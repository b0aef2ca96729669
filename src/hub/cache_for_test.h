// CacheForTest: a cache of hubs in a folder that goes with it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/digest.h"
#include "base/hex.h"
#include "hub/hub_cache.h"

namespace kvasir::hub {

inline const std::string kOldCommit(40, '1'), kNewCommit(40, '2');

class CacheForTest {
 public:
  explicit CacheForTest(const std::string& name)
      : cache_(std::filesystem::path(testing::TempDir()) /
               (name + "_" + std::to_string(getpid()))) {
    std::filesystem::remove_all(cache_.root());
  }
  ~CacheForTest() { std::filesystem::remove_all(cache_.root()); }

  const HubCache& cache() const { return cache_; }
  // Puts a file with these bytes into a snapshot of "a/b"; returns its blob.
  std::string Add(const std::string& commit, const std::string& file, const std::string& bytes) {
    std::string blob = ToHex(Sha256Of(bytes));
    std::filesystem::create_directories(cache_.Blob("a/b", blob).parent_path());
    std::ofstream(cache_.Blob("a/b", blob)) << bytes;
    EXPECT_TRUE(cache_.Link({"a/b", {}, {}}, commit, file, blob));
    return blob;
  }

 private:
  HubCache cache_;
};

}  // namespace kvasir::hub
