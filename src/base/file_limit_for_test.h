// FileLimit: limits the size of files, for tests of incomplete writes.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>

namespace kvasir {

// While it exists, this process cannot write files beyond `max_bytes`: a write across the limit is
// cut, a write after it fails with EFBIG.
class FileLimit {
 public:
  explicit FileLimit(rlim_t max_bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit = {max_bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    errno = 0;  // so that a later value is new
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
  void (*const handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);  // it would end the process
};

}  // namespace kvasir
