// FileLimit: files that cannot grow, for tests of writes that fall short.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>

namespace kvasir {

// While it lives, this process can write no file beyond `max_bytes`: a write up to there falls
// short, one from there on fails with EFBIG.
class FileLimit {
 public:
  explicit FileLimit(rlim_t max_bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit = {max_bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    errno = 0;  // what it says afterwards, somebody has set
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
