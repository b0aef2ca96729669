#include "base/secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/file_limit_for_test.h"

namespace kvasir {
namespace {

class SecretTest : public testing::Test {
 protected:
  SecretTest() {
    std::string pattern = testing::TempDir() + "/kvasir-secret-XXXXXX";
    dir_ = mkdtemp(pattern.data());
  }
  ~SecretTest() override { std::filesystem::remove_all(dir_); }

  void Write(const std::string& bytes, mode_t mode) {
    std::ofstream(dir_ + "/secret") << bytes;
    chmod((dir_ + "/secret").c_str(), mode);
  }

  std::string dir_;
};

TEST_F(SecretTest, IsMadeOnceAndThenTheSame) {
  const auto first = LoadOrCreateSecret(dir_ + "/state/deep");
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_NE(*first, Secret{});
  EXPECT_EQ(*LoadOrCreateSecret(dir_ + "/state/deep"), *first);
  struct stat about;
  ASSERT_EQ(stat((dir_ + "/state/deep/secret").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  EXPECT_EQ(about.st_size, 32);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_ + "/state/deep"), {}), 1);
  EXPECT_NE(*LoadOrCreateSecret(dir_), *first);
}

TEST_F(SecretTest, RefusesAFileThatOthersMayRead) {
  Write(std::string(32, 'x'), 0644);
  const auto secret = LoadOrCreateSecret(dir_);
  ASSERT_FALSE(secret);
  EXPECT_EQ(secret.error().code, Code::kPermissionDenied);
  EXPECT_NE(secret.error().message.find("chmod 600"), std::string::npos);
}

TEST_F(SecretTest, RefusesAFolderThatOthersMayWriteTo) {
  Write(std::string(32, 'x'), 0600);
  chmod(dir_.c_str(), 0777);
  EXPECT_EQ(LoadOrCreateSecret(dir_).error().code, Code::kPermissionDenied);
  chmod(dir_.c_str(), 0700);
  EXPECT_TRUE(LoadOrCreateSecret(dir_));
  if (chown((dir_ + "/secret").c_str(), 65534, 65534) != 0) return;  // only root can give it away
  EXPECT_EQ(LoadOrCreateSecret(dir_).error().code, Code::kPermissionDenied);
}

TEST_F(SecretTest, RefusesAnotherSize) {
  Write(std::string(31, 'x'), 0600);
  EXPECT_EQ(LoadOrCreateSecret(dir_).error().code, Code::kCorruption);
  Write("", 0600);
  EXPECT_EQ(LoadOrCreateSecret(dir_).error().code, Code::kCorruption);
}

TEST_F(SecretTest, RefusesALink) {
  Write(std::string(32, 'x'), 0600);
  std::filesystem::create_directory(dir_ + "/other");
  std::filesystem::create_symlink(dir_ + "/secret", dir_ + "/other/secret");
  EXPECT_EQ(LoadOrCreateSecret(dir_ + "/other").error().code, Code::kCorruption);
}

TEST_F(SecretTest, ReportsAFolderThatCannotBeMade) {
  Write("x", 0600);
  EXPECT_EQ(LoadOrCreateSecret(dir_ + "/secret/state").error().code, Code::kIoError);
}

TEST_F(SecretTest, AWriteThatFallsShortSaysWhyAndLeavesNothing) {
  for (const rlim_t max_bytes : {0, 10}) {
    Result<Secret> made;
    {
      const FileLimit limit(max_bytes);
      made = LoadOrCreateSecret(dir_);
    }
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, Code::kIoError);
    EXPECT_TRUE(made.error().message.ends_with(": File too large")) << made.error().message;
    EXPECT_TRUE(std::filesystem::is_empty(dir_));
  }
  EXPECT_TRUE(LoadOrCreateSecret(dir_));
}

TEST(EphemeralSecret, DiffersEachTime) { EXPECT_NE(*EphemeralSecret(), *EphemeralSecret()); }

}  // namespace
}  // namespace kvasir
