#include "base/secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

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

TEST_F(SecretTest, RefusesAFolderByThatName) {
  std::filesystem::create_directory(dir_ + "/secret");
  for (const mode_t mode : {0755, 0700}) {
    chmod((dir_ + "/secret").c_str(), mode);
    const auto secret = LoadOrCreateSecret(dir_);
    ASSERT_FALSE(secret);
    EXPECT_NE(secret.error().message.find("/secret is a folder, not a file"), std::string::npos)
        << secret.error().message;
  }
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
    EXPECT_TRUE(made.error().message.find(": File too large; name another folder") !=
                std::string::npos)
        << made.error().message;
    EXPECT_TRUE(std::filesystem::is_empty(dir_));
  }
  EXPECT_TRUE(LoadOrCreateSecret(dir_));
}

TEST_F(SecretTest, OfSystemdMayHaveTheModeOfItsAcl) {
  Write(std::string(32, 'x'), 0440);
  const Result<Secret> secret = ReadSecret(dir_ + "/secret");
  if (geteuid() == 0) {  // the file belongs to root, and to its group
    EXPECT_TRUE(secret) << secret.error().message;
    ASSERT_EQ(chown((dir_ + "/secret").c_str(), 0, 65534), 0);
  }
  EXPECT_EQ(ReadSecret(dir_ + "/secret").error().code, Code::kPermissionDenied);
}

// A start makes no file that a flag names.
TEST_F(SecretTest, OfAFlagIsNotDeletedToMakeANewOne) {
  Write(std::string(31, 'x'), 0600);
  const Error named = ReadSecret(dir_ + "/secret").error(), own = LoadOrCreateSecret(dir_).error();
  EXPECT_EQ(named.code, Code::kCorruption);
  EXPECT_EQ(named.message.find("delete it"), std::string::npos) << named.message;
  EXPECT_NE(named.message.find("restore it, or name another one"), std::string::npos);
  EXPECT_NE(own.message.find("delete it to make a new one"), std::string::npos) << own.message;
}

// A new one would make a fleet of this machine alone.
TEST_F(SecretTest, OfAFleetIsCopiedFromAnotherMachine) {
  const auto error_of = [&](const std::string& bytes, mode_t mode) {
    Write(bytes, mode);
    const Result<Secret> secret = ReadFleetSecret(dir_ + "/secret");
    return secret ? Error{} : secret.error();
  };
  const Error missing = ReadFleetSecret(dir_ + "/none").error();
  EXPECT_EQ(missing.code, Code::kNotFound);
  EXPECT_NE(missing.message.find("copy it from another machine of the fleet"), std::string::npos);
  const Error damaged = error_of(std::string(31, 'x'), 0600);
  EXPECT_EQ(damaged.code, Code::kCorruption);
  EXPECT_NE(damaged.message.find("has 31 bytes, not 32; copy it from another machine"),
            std::string::npos)
      << damaged.message;
  EXPECT_EQ(damaged.message.find("delete it"), std::string::npos) << damaged.message;
  const Error known = error_of(std::string(32, 'x'), 0644);
  EXPECT_EQ(known.code, Code::kPermissionDenied);
  EXPECT_NE(known.message.find("for all machines of the fleet"), std::string::npos);
  EXPECT_EQ(error_of("0123456789abcdef0123456789abcdef", 0600).message, "");
}

TEST_F(SecretTest, OfAFleetIsNotOneByteRepeated) {
  for (const char byte : {'\0', 'x'}) {
    Write(std::string(32, byte), 0600);
    const Result<Secret> secret = ReadFleetSecret(dir_ + "/secret");
    ASSERT_FALSE(secret);
    EXPECT_EQ(secret.error().code, Code::kCorruption);
    EXPECT_NE(secret.error().message.find(byte == 0 ? "the byte 0x00 32 times"  //
                                                    : "the byte 0x78 32 times"),
              std::string::npos)
        << secret.error().message;
  }
}

TEST(EphemeralSecret, DiffersEachTime) { EXPECT_NE(*EphemeralSecret(), *EphemeralSecret()); }

}  // namespace
}  // namespace kvasir
