#include "cli/npy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <vector>

#include "base/file_limit_for_test.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

class NpyTest : public testing::Test {
 protected:
  NpyTest() { fs::create_directories(folder_); }
  ~NpyTest() override { fs::remove_all(folder_); }

  static NpyWriter Open(const std::string& path, uint64_t rows, uint64_t columns) {
    Result<NpyWriter> writer = NpyWriter::Open(path, rows, columns);
    EXPECT_TRUE(writer) << writer.error().message;
    return std::move(*writer);
  }
  static std::string BytesOf(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static Error OpenError(const std::string& path) {
    const Result<NpyWriter> writer = NpyWriter::Open(path, 1, 1);
    EXPECT_FALSE(writer) << path;
    return writer ? Error{} : writer.error();
  }
  size_t NumFiles() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  const fs::path folder_ = fs::path(testing::TempDir()) / ("npy." + std::to_string(getpid()));
  const std::string path_ = folder_ / "a.npy";
};

// numpy.lib.format: magic, version 1.0, little-endian u16 length of the text that follows.
TEST_F(NpyTest, TheHeaderIsVersion1AndEndsAtAMultipleOf64) {
  const std::pair<uint64_t, uint64_t> shapes[] = {
      {1, 1}, {0, 0}, {3, 32000}, {1234567890, 1234567890}, {UINT64_MAX, UINT64_MAX}};
  for (const auto& [rows, columns] : shapes) {
    NpyWriter writer = Open(path_, rows, columns);
    ASSERT_TRUE(writer.Close());
    const std::string file = BytesOf(path_);
    ASSERT_GE(file.size(), 10U);
    EXPECT_EQ(file.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
    const size_t text_bytes =
        static_cast<uint8_t>(file[8]) + 256 * static_cast<size_t>(static_cast<uint8_t>(file[9]));
    ASSERT_EQ(file.size(), 10 + text_bytes);  // no row was written
    EXPECT_EQ(file.size() % 64, 0U);
    const std::string dictionary = "{'descr': '<f4', 'fortran_order': False, 'shape': (" +
                                   std::to_string(rows) + ", " + std::to_string(columns) + "), }";
    EXPECT_EQ(file.substr(10, dictionary.size()), dictionary);
    EXPECT_EQ(file.back(), '\n');
    const std::string padding = file.substr(10 + dictionary.size());
    EXPECT_LE(padding.size(), 64U);
    EXPECT_EQ(padding, std::string(padding.size() - 1, ' ') + '\n');
  }
}

TEST_F(NpyTest, TheFileIsByteForByteWhatNumpySaves) {
  NpyWriter writer = Open(path_, 2, 2);
  writer.WriteRow(0, std::vector<float>{1.0F, -2.5F});
  writer.WriteRow(1, std::vector<float>{0.0F, 65504.0F});
  ASSERT_TRUE(writer.Close());
  // numpy.save("a.npy", numpy.float32([[1, -2.5], [0, 65504]]))
  std::string saved("\x93NUMPY\x01\x00\x76\x00", 10);
  saved += "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }";
  saved.resize(127, ' ');
  saved += '\n';
  saved += std::string("\x00\x00\x80\x3f\x00\x00\x20\xc0\x00\x00\x00\x00\x00\xe0\x7f\x47", 16);
  EXPECT_EQ(BytesOf(path_), saved);
}

TEST_F(NpyTest, RowsMayComeInAnyOrderAndKeepTheirBits) {
  constexpr uint64_t kRows = 5, kColumns = 3;
  const float bits[] = {
      std::numeric_limits<float>::infinity(),   -std::numeric_limits<float>::quiet_NaN(), -0.0F,
      std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::lowest(),     0.1F};
  std::vector<float> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = bits[i % std::size(bits)];
  NpyWriter writer = Open(path_, kRows, kColumns);
  for (const uint64_t row : {3, 0, 4, 2, 1, 3}) {
    writer.WriteRow(row, std::span(values).subspan(row * kColumns, kColumns));
  }
  ASSERT_TRUE(writer.Close());
  const std::string file = BytesOf(path_);
  const size_t bytes = values.size() * sizeof(float);
  ASSERT_EQ(file.size(), 128 + bytes);
  EXPECT_EQ(std::memcmp(file.data() + 128, values.data(), bytes), 0);
}

TEST_F(NpyTest, TheFileGetsItsNameOnlyWhenItIsClosed) {
  std::ofstream(path_) << "old";
  {
    NpyWriter writer = Open(path_, 1, 1);
    writer.WriteRow(0, std::vector<float>{1});
    EXPECT_EQ(BytesOf(path_), "old");
  }
  EXPECT_EQ(BytesOf(path_), "old");
  EXPECT_EQ(NumFiles(), 1U);
  NpyWriter writer = Open(path_, 1, 1);
  ASSERT_TRUE(writer.Close());
  EXPECT_EQ(BytesOf(path_).substr(1, 5), "NUMPY");
  EXPECT_EQ(NumFiles(), 1U);
}

TEST_F(NpyTest, OthersMayReadTheFileAsTheUmaskSays) {
  const mode_t before = umask(027);
  const Status closed = Open(path_, 1, 1).Close();
  umask(before);
  ASSERT_TRUE(closed) << closed.error().message;
  struct stat stat_of_file;
  ASSERT_EQ(stat(path_.c_str(), &stat_of_file), 0);
  EXPECT_EQ(stat_of_file.st_mode & 0777U, 0640U);
}

TEST_F(NpyTest, ALinkStaysAndItsTargetIsReplaced) {
  fs::create_directories(folder_ / "other");
  std::ofstream(folder_ / "other" / "b.npy") << "old";
  fs::create_symlink("other/b.npy", path_);
  ASSERT_TRUE(Open(path_, 1, 1).Close());
  EXPECT_TRUE(fs::is_symlink(path_));
  EXPECT_FALSE(fs::is_symlink(folder_ / "other" / "b.npy"));
  EXPECT_EQ(BytesOf(folder_ / "other" / "b.npy").substr(1, 5), "NUMPY");
}

TEST_F(NpyTest, WhatIsNoRegularFileIsNeverReplaced) {
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/null", folder_ / "link");
  for (const std::string& path : {folder_.string(), (folder_ / "pipe").string(),
                                  (folder_ / "link").string(), std::string("/dev/null")}) {
    const Error error = OpenError(path);
    EXPECT_EQ(error.code, Code::kInvalidArgument);
    EXPECT_EQ(error.message, "--out: '" + path + "' is not a regular file; give another name");
  }
}

TEST_F(NpyTest, APathThatCannotBeWrittenIsRefusedBeforeTheWork) {
  std::ofstream(folder_ / "file") << "x";
  for (const fs::path& path :
       {folder_ / "none" / "a.npy", folder_ / "file" / "a.npy", fs::path("/proc/a.npy")}) {
    const Error error = OpenError(path);
    EXPECT_EQ(error.code, Code::kInvalidArgument);
    EXPECT_TRUE(error.message.starts_with("--out: cannot write " + path.string() + ": "))
        << error.message;
    EXPECT_TRUE(error.message.ends_with("; give a file in a writable folder")) << error.message;
  }
}

TEST_F(NpyTest, CloseReportsTheFirstFailedWriteAndLeavesTheOldFile) {
  std::ofstream(path_) << "old";
  const std::vector<float> row(1024, 1);
  {
    NpyWriter writer = Open(path_, 4, row.size());
    Status closed;
    {
      const FileLimit limit(2048);
      writer.WriteRow(0, row);  // its end is beyond the limit
      writer.WriteRow(1, row);
    }
    writer.WriteRow(0, row);  // would succeed, too late
    closed = writer.Close();
    ASSERT_FALSE(closed);
    EXPECT_EQ(closed.error().code, Code::kIoError);
    EXPECT_TRUE(closed.error().message.starts_with("--out: cannot write " +
                                                   fs::canonical(path_).string() + ": "))
        << closed.error().message;
  }
  EXPECT_EQ(BytesOf(path_), "old");
  EXPECT_EQ(NumFiles(), 1U);
}

TEST_F(NpyTest, AHeaderThatCannotBeWrittenIsReportedByClose) {
  const FileLimit limit(64);
  NpyWriter writer = Open(path_, 1, 1);
  const Status closed = writer.Close();
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().code, Code::kIoError);
  EXPECT_FALSE(fs::exists(path_));
}

}  // namespace
}  // namespace kvasir::cli
