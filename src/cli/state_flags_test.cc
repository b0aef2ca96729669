#include "cli/state_flags.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/environment_for_test.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

class StateFlagsTest : public testing::Test {
 protected:
  StateFlagsTest() { fs::create_directories(folder_); }
  ~StateFlagsTest() override { fs::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    fs::permissions(folder_ / name, fs::perms(0600));
    return folder_ / name;
  }

  const fs::path folder_ =
      fs::path(testing::TempDir()) / ("state_flags." + std::to_string(getpid()));
  const std::string path_ = folder_.string();
  const Environment environment_{{"CREDENTIALS_DIRECTORY", path_.c_str()},
                                 {"KVASIR_SECRET_FILE", nullptr}};
  Args args_;
};

TEST_F(StateFlagsTest, TheSecretIsThatOfTheFlagTheVariableOrTheCredential) {
  EXPECT_EQ(ReadStateFlags(args_)->state_dir, std::nullopt);
  EXPECT_EQ(ReadStateFlags(args_)->file, std::nullopt);
  args_.Set("state-dir", {"/state"});
  EXPECT_EQ(ReadStateFlags(args_)->state_dir, "/state");
  const std::string text(32, 'c');
  const std::string loaded = Write("kvasir_secret", text);
  EXPECT_EQ(ReadStateFlags(args_)->file, loaded);
  const std::string named = Write("secret", text);  // LoadCredential=secret:FILE
  EXPECT_EQ(ReadStateFlags(args_)->file, named);
  const std::string variable = Write("variable", text);
  const Environment with_variable{{"KVASIR_SECRET_FILE", variable.c_str()}};
  EXPECT_EQ(ReadStateFlags(args_)->file, variable);
  const std::string given = Write("given", text);
  args_.Set("secret-file", {given});
  EXPECT_EQ(ReadStateFlags(args_)->file, given);
  EXPECT_EQ(ReadStateFlags(args_)->state_dir, "/state");
}

TEST_F(StateFlagsTest, WithoutAFolderOfCredentialsThereAreNone) {
  Write("secret", std::string(32, 'c'));
  for (const char* folder : {static_cast<const char*>(nullptr), "", "credentials"}) {
    const Environment environment{{"CREDENTIALS_DIRECTORY", folder}};
    EXPECT_EQ(CredentialFile("secret"), std::nullopt);
  }
}

TEST_F(StateFlagsTest, AFileThatIsNotASecretIsRefused) {
  args_.Set("secret-file", {path_ + "/missing"});
  const Error error = ReadStateFlags(args_).error();
  EXPECT_EQ(error.code, Code::kInvalidArgument);
  EXPECT_TRUE(error.message.starts_with("--secret-file: ")) << error.message;
  EXPECT_TRUE(error.message.ends_with("; 'kvasir key secret FILE' makes one")) << error.message;
  args_.Set("secret-file", {Write("short", "x")});
  EXPECT_EQ(ReadStateFlags(args_).error().code, Code::kCorruption);
  for (const char* flag : {"state-dir", "secret-file"}) {
    Args args;
    args.Set(flag, {""});
    EXPECT_EQ(ReadStateFlags(args).error().code, Code::kInvalidArgument) << flag;
  }
}

TEST_F(StateFlagsTest, CredentialsAreTakenForFlagsThatWereNotGiven) {
  ASSERT_TRUE(TakeCredentials(&args_));
  for (const char* flag : {"keys", "api-key-file", "admin-key"}) EXPECT_FALSE(args_.Has(flag));
  const std::string keys = Write("keys", "{}"), more = Write("kvasir_api-keys", "k\n");
  Write("kvasir_admin-key", "secret key\r\n");
  ASSERT_TRUE(TakeCredentials(&args_));
  EXPECT_EQ(args_.Text("keys"), keys);
  EXPECT_EQ(args_.Text("api-key-file"), more);
  EXPECT_EQ(args_.Text("admin-key"), "secret key");
  Args given;
  for (const char* flag : {"keys", "api-key-file", "admin-key"}) given.Set(flag, {"mine"});
  ASSERT_TRUE(TakeCredentials(&given));
  for (const char* flag : {"keys", "api-key-file", "admin-key"}) {
    EXPECT_EQ(given.Text(flag), "mine");
  }
}

}  // namespace
}  // namespace kvasir::cli
