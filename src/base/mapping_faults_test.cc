#include "base/mapping_faults.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/mapped_file.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

class MappingFaultsTest : public testing::Test {
 protected:
  MappingFaultsTest() {
    CatchMappingFaults();
    fs::create_directories(folder_);
  }
  ~MappingFaultsTest() override { fs::remove_all(folder_); }

  fs::path Write(const std::string& name, size_t bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << std::string(bytes, 'x');
    return folder_ / name;
  }

  const fs::path folder_ = fs::path(testing::TempDir()) / ("faults." + std::to_string(getpid()));
  const size_t page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
};

// Reads volatile, so that the compiler reads exactly once.
char At(const MappedFile& file, size_t offset) {
  return reinterpret_cast<const volatile char*>(file.bytes().data())[offset];
}

TEST_F(MappingFaultsTest, ALostPageReadsAsZerosAndIsCounted) {
  const fs::path path = Write("a", 8 * page_);
  const auto file = *MappedFile::Open(path);
  EXPECT_EQ(At(*file, 5 * page_), 'x');
  EXPECT_FALSE(file->faulted());
  fs::resize_file(path, 2 * page_ + 1);
  EXPECT_EQ(At(*file, 5 * page_ + 7), '\0');
  EXPECT_TRUE(file->faulted());
  EXPECT_EQ(At(*file, 5 * page_), '\0');  // the whole page
  EXPECT_EQ(At(*file, 0), 'x');
  EXPECT_EQ(At(*file, 8 * page_ - 1), '\0');
  EXPECT_EQ(file->Now()->size_bytes, 2 * page_ + 1);
}

TEST_F(MappingFaultsTest, OnlyTheFileThatLostAPageIsFaulted) {
  const fs::path path = Write("a", 4 * page_);
  const auto cut = *MappedFile::Open(path), whole = *MappedFile::Open(Write("b", 4 * page_));
  fs::resize_file(path, 0);
  EXPECT_EQ(At(*cut, page_), '\0');
  EXPECT_EQ(At(*whole, page_), 'x');
  EXPECT_TRUE(cut->faulted());
  EXPECT_FALSE(whole->faulted());
}

TEST_F(MappingFaultsTest, ThreadsMayFaultAtOnceWhileOthersMap) {
  const fs::path path = Write("a", 64 * page_);
  const auto file = *MappedFile::Open(path);
  const fs::path other = Write("b", page_);
  fs::resize_file(path, 0);
  std::atomic<size_t> zeros = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < 64; ++i) {
        zeros += At(*file, i * page_) == '\0';
        EXPECT_EQ(At(**MappedFile::Open(other), 0), 'x');
      }
    });
  }
  threads.clear();
  EXPECT_EQ(zeros, 4u * 64);
  EXPECT_TRUE(file->faulted());
}

TEST_F(MappingFaultsTest, ARowIsUsedAgainWithoutItsFaults) {
  const fs::path path = Write("a", 2 * page_), other = Write("b", 2 * page_);
  for (int i = 0; i < 3; ++i) {
    fs::resize_file(path, 2 * page_);
    const auto cut = *MappedFile::Open(path);
    fs::resize_file(path, 0);
    EXPECT_EQ(At(*cut, page_), '\0');
  }
  EXPECT_FALSE((*MappedFile::Open(other))->faulted());
}

// Makes a truncated mapping that was not added to the table.
char* ForeignMapping(const fs::path& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY));
  void* mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file.fd(), 0);
  fs::resize_file(path, 0);
  return static_cast<char*>(mapped);
}

using MappingFaultsDeathTest = MappingFaultsTest;

TEST_F(MappingFaultsDeathTest, FaultsElsewhereAndSignalsThatAreSentStillEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
#ifdef KVASIR_SANITIZED
  GTEST_SKIP() << "the sanitizer has its own handler";
#endif
  const fs::path path = Write("a", 4096);
  EXPECT_EXIT(static_cast<void>(*const_cast<volatile char*>(ForeignMapping(path))),
              testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(raise(SIGBUS), testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace kvasir
