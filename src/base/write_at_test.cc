#include "base/write_at.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "base/descriptor.h"
#include "base/file_limit_for_test.h"

namespace kvasir {
namespace {

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
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
  EXPECT_EQ(Contents(fd_), std::string(4, '\0') + "012345");  // as much as there was room for
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
