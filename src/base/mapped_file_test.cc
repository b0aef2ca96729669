#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

namespace kvasir {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public testing::Test {
 protected:
  MappedFileTest() { fs::create_directories(folder_); }
  ~MappedFileTest() override { fs::remove_all(folder_); }
  fs::path Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  fs::path folder_ = fs::path(testing::TempDir()) / ("mapped_file." + std::to_string(getpid()));
};

TEST_F(MappedFileTest, ShowsTheBytesAndOutlivesTheName) {
  const auto path = Write("a", "seven!!");
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file) << file.error().message;
  fs::remove(path);
  ASSERT_EQ((*file)->bytes().size(), 7u);
  EXPECT_EQ(std::memcmp((*file)->bytes().data(), "seven!!", 7), 0);
  EXPECT_EQ((*file)->stamp().size_bytes, 7u);
}

TEST_F(MappedFileTest, AnEmptyFileIsAnEmptySpan) {
  auto file = MappedFile::Open(Write("empty", ""));
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_TRUE((*file)->bytes().empty());
}

TEST_F(MappedFileTest, SaysWhatIsWrongWithWhichPath) {
  const auto missing = MappedFile::Open(folder_ / "none");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_NE(missing.error().message.find("none"), std::string::npos);
  const auto folder = MappedFile::Open(folder_);
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().code, Code::kInvalidArgument);
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  const auto pipe = MappedFile::Open(folder_ / "pipe");  // must not wait for a writer
  ASSERT_FALSE(pipe);
  EXPECT_EQ(pipe.error().code, Code::kInvalidArgument);
  const auto under_a_file = StampOf(Write("file", "x") / "y");
  ASSERT_FALSE(under_a_file);
  EXPECT_EQ(under_a_file.error().code, Code::kNotFound);
}

TEST_F(MappedFileTest, AFileThatMayNotBeReadIsPermissionDenied) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const auto path = Write("locked", "x");
  fs::permissions(path, fs::perms::none);
  const auto file = MappedFile::Open(path);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, Code::kPermissionDenied);
}

TEST_F(MappedFileTest, AReplacedFileHasAnotherStamp) {
  const auto path = Write("a", "one");
  const auto before = StampOf(path);
  ASSERT_TRUE(before);
  EXPECT_EQ(*before, *StampOf(path));
  fs::rename(Write("b", "two"), path);
  EXPECT_NE(before->inode, StampOf(path)->inode);
}

// Opens the file in the same clock tick in which it was written, like a script that copies a model
// and starts a server.
TEST_F(MappedFileTest, EveryWriteAfterOpenMovesTheStamp) {
  for (int i = 0; i < 20; ++i) {
    const auto path = Write("a", "one");
    const auto file = MappedFile::Open(path);
    ASSERT_TRUE(file);
    EXPECT_EQ((*file)->stamp(), *(*file)->Now());
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << "two";
    EXPECT_NE((*file)->stamp(), *(*file)->Now());
  }
}

TEST_F(MappedFileTest, NowIsOfTheFileThatIsMappedAndNotOfItsPath) {
  const auto path = Write("a", "one");
  const auto file = *MappedFile::Open(path);
  fs::rename(Write("b", "three"), path);
  const auto now = file->Now();
  ASSERT_TRUE(now);
  EXPECT_EQ(now->inode, file->stamp().inode);
  EXPECT_EQ(now->size_bytes, 3u);
  EXPECT_EQ(now->mtime_ns, file->stamp().mtime_ns);
  EXPECT_EQ(now->links, 0u);
}

TEST_F(MappedFileTest, TextIsReadUpToALimit) {
  const auto path = Write("text", "12345");
  EXPECT_EQ(*ReadTextFile(path, 5), "12345");
  const auto refused = ReadTextFile(path, 4);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvasir
