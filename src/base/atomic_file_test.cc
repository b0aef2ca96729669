#include "base/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes_for_test.h"
#include "base/descriptor.h"
#include "base/file_limit_for_test.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public testing::TestWithParam<Durability> {
 protected:
  AtomicFileTest() {
    std::string pattern = testing::TempDir() + "/kvasir-atomic-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ / "file";
  }
  ~AtomicFileTest() override { fs::remove_all(folder_); }

  std::string Read() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
  mode_t Mode() const {
    struct stat about {};
    EXPECT_EQ(stat(path_.c_str(), &about), 0);
    return about.st_mode & 07777;
  }
  static AtomicFileOptions Options(IfPresent if_present = IfPresent::kReplace) {
    return {.durability = GetParam(), .if_present = if_present};
  }

  fs::path folder_, path_;
};

INSTANTIATE_TEST_SUITE_P(Each, AtomicFileTest,
                         testing::Values(Durability::kSynced, Durability::kRecomputable));

TEST_P(AtomicFileTest, AppearsWholeAndLeavesNothingElse) {
  ASSERT_TRUE(WriteAtomicFile(path_, "one", Options()));
  EXPECT_EQ(Read(), "one");
  ASSERT_TRUE(WriteAtomicFile(path_, "", Options()));
  EXPECT_EQ(Read(), "");
  EXPECT_EQ(Names(), std::vector<std::string>{"file"});
}

TEST_P(AtomicFileTest, NobodySeesItBeforeItIsPublished) {
  ASSERT_TRUE(WriteAtomicFile(path_, "old", Options()));
  const auto file = AtomicFile::Create(path_, Options());
  ASSERT_TRUE(file);
  ASSERT_TRUE((*file)->Resize(6));
  ASSERT_TRUE((*file)->WriteAt(std::as_bytes(std::span("xyz", 3)), 2));
  EXPECT_EQ(Read(), "old");
  ASSERT_TRUE((*file)->Publish());
  EXPECT_EQ(Read(), std::string("\0\0xyz\0", 6));
}

TEST_P(AtomicFileTest, OneThatIsNotPublishedIsRemoved) {
  ASSERT_TRUE(WriteAtomicFile(path_, "old", Options()));
  {
    const auto file = AtomicFile::Create(path_, Options());
    ASSERT_TRUE(file && (*file)->WriteAt(std::as_bytes(std::span("new", 3)), 0));
    EXPECT_EQ(Names().size(), 2u);
  }
  EXPECT_EQ(Names(), std::vector<std::string>{"file"});
  EXPECT_EQ(Read(), "old");
}

TEST_P(AtomicFileTest, ADraftIsLockedAndCanBeTold) {
  const auto file = AtomicFile::Create(path_, Options());
  ASSERT_TRUE(file);
  const std::string name = Names().at(0);
  EXPECT_TRUE(IsDraftName(name)) << name;
  EXPECT_FALSE(IsDraftName("file"));
  const Descriptor draft(open((folder_ / name).c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_NE(flock(draft.fd(), LOCK_EX | LOCK_NB), 0);
}

TEST_P(AtomicFileTest, AFullDiskSaysSoAndChangesNothing) {
  ASSERT_TRUE(WriteAtomicFile(path_, "old", Options()));
  for (const rlim_t max_bytes : {0, 100}) {
    Status written;
    {
      const FileLimit limit(max_bytes);
      written = WriteAtomicFile(path_, std::string(1000, 'x'), Options());
    }
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, Code::kIoError);
    EXPECT_EQ(written.error().message, "cannot write " + path_.string() + ": File too large");
    EXPECT_EQ(Read(), "old");
    EXPECT_EQ(Names(), std::vector<std::string>{"file"});
  }
}

TEST_P(AtomicFileTest, AFolderThatIsNotThereIsAnError) {
  const fs::path path = folder_ / "none" / "file";
  const Status written = WriteAtomicFile(path, "x", Options());
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Code::kNotFound);
  EXPECT_EQ(written.error().message,
            "cannot write " + path.string() + ": No such file or directory");
}

TEST_P(AtomicFileTest, AFolderThatMayNotBeWrittenIsAnErrorAndChangesNothing) {
  ASSERT_TRUE(WriteAtomicFile(path_, "old", Options()));
  ASSERT_EQ(chmod(folder_.c_str(), 0555), 0);
  const pid_t child = fork();  // if this is root, the child can drop root's rights
  if (child == 0) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(2);
    const Status written = WriteAtomicFile(path_, "new", Options());
    _exit(!written && written.error().code == Code::kPermissionDenied ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  chmod(folder_.c_str(), 0700);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(Read(), "old");
  EXPECT_EQ(Names(), std::vector<std::string>{"file"});
}

TEST_P(AtomicFileTest, AFolderOfItsNameIsAnErrorAndStays) {
  fs::create_directory(path_);
  const Status written = WriteAtomicFile(path_, "x", Options());
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().message, "cannot write " + path_.string() + ": not a regular file");
  EXPECT_EQ(Names(), std::vector<std::string>{"file"});
}

TEST_P(AtomicFileTest, ADeviceOrAPipeOfItsNameIsAnErrorAndStays) {
  for (const bool linked : {false, true}) {
    ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
    path_ = folder_ / (linked ? "file" : "pipe");
    if (linked) fs::create_symlink("pipe", path_);
    const Status written = WriteAtomicFile(path_, "x", Options());
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, Code::kInvalidArgument);
    EXPECT_TRUE(fs::is_fifo(path_));
    EXPECT_EQ(Names().size(), linked ? 2u : 1u);
    fs::remove(folder_ / "pipe");
  }
  EXPECT_FALSE(WriteAtomicFile("/dev/null", "x", Options()));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_P(AtomicFileTest, ALinkIsReplacedNotFollowed) {
  const fs::path other = folder_ / "other";
  std::ofstream(other) << "theirs";
  fs::create_symlink(other, path_);
  ASSERT_TRUE(WriteAtomicFile(path_, "ours", Options()));
  EXPECT_FALSE(fs::is_symlink(path_));
  EXPECT_EQ(fs::file_size(other), 6u);
}

TEST_P(AtomicFileTest, OfTwoWritersAtOnceTheLastOrTheFirstIsRight) {
  for (const IfPresent if_present : {IfPresent::kReplace, IfPresent::kKeep}) {
    fs::remove(path_);
    const auto first = AtomicFile::Create(path_, Options(if_present));
    const auto second = AtomicFile::Create(path_, Options(if_present));
    ASSERT_TRUE(first && second);
    ASSERT_TRUE((*first)->WriteAt(std::as_bytes(std::span("first", 5)), 0));
    ASSERT_TRUE((*second)->WriteAt(std::as_bytes(std::span("second", 6)), 0));
    ASSERT_TRUE((*first)->Publish());
    EXPECT_EQ(Read(), "first");
    ASSERT_TRUE((*second)->Publish());
    EXPECT_EQ(Read(), if_present == IfPresent::kKeep ? "first" : "second");
  }
  EXPECT_EQ(Names(), std::vector<std::string>{"file"});
}

TEST_P(AtomicFileTest, ManyWritersNeverShowAMixture) {
  constexpr size_t kBytes = 100'000;
  ASSERT_TRUE(WriteAtomicFile(path_, std::string(kBytes, 'a'), Options()));
  std::vector<std::jthread> writers;
  for (const char letter : {'a', 'b', 'c'}) {
    writers.emplace_back([this, letter] {
      for (int i = 0; i < 20; ++i) {
        EXPECT_TRUE(WriteAtomicFile(path_, std::string(kBytes, letter), Options()));
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    const std::string seen = Read();
    ASSERT_EQ(seen, std::string(kBytes, seen.at(0)));
  }
  writers.clear();
  EXPECT_EQ(Names(), std::vector<std::string>{"file"});
}

TEST_P(AtomicFileTest, ItsModeIsWhatWasAskedFor) {
  const mode_t mask = umask(027);
  ASSERT_TRUE(WriteAtomicFile(path_, "x", Options()));
  EXPECT_EQ(Mode(), 0600u);
  ASSERT_TRUE(
      WriteAtomicFile(path_, "x", {.durability = GetParam(), .readers = Readers::kByUmask}));
  EXPECT_EQ(Mode(), 0640u);
  umask(mask);
}

TEST_P(AtomicFileTest, APathWithoutAFolderIsInTheCurrentOne) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  EXPECT_TRUE(WriteAtomicFile("file", "x", Options()));
  fs::current_path(before);
  EXPECT_EQ(Read(), "x");
}

std::string Contents(int fd) {
  std::string text(1000, '\0');
  const ssize_t n = pread(fd, text.data(), text.size(), 0);
  text.resize(n < 0 ? 0 : static_cast<size_t>(n));
  return text;
}

class WriteAllAtTest : public testing::Test {
 protected:
  void TearDown() override { std::fclose(file_); }
  std::FILE* const file_ = std::tmpfile();
  const int fd_ = fileno(file_);
};

TEST_F(WriteAllAtTest, WritesWhereItIsTold) {
  EXPECT_TRUE(WriteAllAt(fd_, BytesOf("abcdef"), 0));
  EXPECT_TRUE(WriteAllAt(fd_, BytesOf("XY"), 2));
  EXPECT_TRUE(WriteAllAt(fd_, {}, 100));
  EXPECT_EQ(Contents(fd_), "abXYef");
}

TEST_F(WriteAllAtTest, SaysWhyAWriteFellShort) {
  bool written = true;
  int error = 0;
  {
    const FileLimit limit(10);
    written = WriteAllAt(fd_, BytesOf("0123456789abc"), 4);
    error = errno;
  }
  EXPECT_FALSE(written);
  EXPECT_EQ(error, EFBIG);
  EXPECT_EQ(Contents(fd_), std::string(4, '\0') + "012345");  // what there was room for
}

TEST(WriteAllAt, SaysThatADiskIsFull) {
  const Descriptor full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  if (!full) GTEST_SKIP() << "no /dev/full";
  EXPECT_FALSE(WriteAllAt(full.fd(), BytesOf("a"), 0));
  EXPECT_EQ(errno, ENOSPC);
}

TEST(WriteAllAt, SaysThatAFileIsNotOpen) {
  EXPECT_FALSE(WriteAllAt(-1, BytesOf("a"), 0));
  EXPECT_EQ(errno, EBADF);
}

}  // namespace
}  // namespace kvasir
