// FakeSystem: a folder that stands for /, with files of /sys and /proc as a test writes them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace kvasir {

class FakeSystem {
 public:
  FakeSystem() {
    static int count = 0;
    root_ = std::filesystem::path(testing::TempDir()) /
            ("system." + std::to_string(getpid()) + "." + std::to_string(count++));
    std::filesystem::create_directories(root_);
  }
  ~FakeSystem() { std::filesystem::remove_all(root_); }
  FakeSystem(const FakeSystem&) = delete;
  FakeSystem& operator=(const FakeSystem&) = delete;

  void File(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  std::string root() const { return root_; }

 private:
  std::filesystem::path root_;
};

}  // namespace kvasir
