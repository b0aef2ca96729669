#include "base/secret_place.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/environment_for_test.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

class SecretPlaceTest : public testing::Test {
 protected:
  SecretPlaceTest() {
    fs::create_directories(state_);
    fs::permissions(state_, fs::perms(0700));
  }
  ~SecretPlaceTest() override { fs::remove_all(folder_); }

  std::string Write(const std::string& name, char letter) const {
    std::ofstream(folder_ / name) << std::string(32, letter);
    fs::permissions(folder_ / name, fs::perms(0600));
    return folder_ / name;
  }

  const fs::path folder_ =
      fs::path(testing::TempDir()) / ("secret_place." + std::to_string(getpid()));
  const std::string state_ = folder_ / "state";
};

TEST_F(SecretPlaceTest, TheSecretIsTheFileElseTheStateFolders) {
  EXPECT_EQ(SecretAt({.state_dir = state_, .file = {}}).error().code, Code::kNotFound);
  EXPECT_TRUE(fs::is_empty(state_));  // it makes none
  Write("state/secret", 'a');
  EXPECT_EQ(SecretAt({.state_dir = state_, .file = {}})->front(), 'a');
  const std::string given = Write("given", 'b');
  EXPECT_EQ(SecretAt({.state_dir = state_, .file = given})->front(), 'b');
  fs::remove(given);
  EXPECT_EQ(SecretAt({.state_dir = state_, .file = given}).error().code, Code::kNotFound);
}

TEST_F(SecretPlaceTest, TheStateFolderOfSystemdCounts) {
  Write("state/secret", 'a');
  const Environment environment{{"STATE_DIRECTORY", state_.c_str()}};
  EXPECT_EQ(SecretAt({})->front(), 'a');
}

}  // namespace
}  // namespace kvasir
