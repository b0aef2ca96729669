// StandardStreams: standard input and output of this process, in a test's hands.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "base/descriptor.h"

namespace kvasir::cli {

// While it exists, descriptor `number` of this process is another file. The destructor restores it.
// For 1, a test's failures are lost meanwhile: check afterwards.
class Redirected {
 public:
  Redirected(int number, int file) : number_(number), before_(dup(number)) {
    std::fflush(stdout);
    EXPECT_EQ(dup2(file, number), number);
  }
  ~Redirected() {
    std::fflush(stdout);
    dup2(before_.fd(), number_);
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  const int number_;
  const Descriptor before_;
};

struct Pipe {
  Pipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    read_end = Descriptor(ends[0]);
    write_end = Descriptor(ends[1]);
  }
  void Write(std::string_view text) const {
    EXPECT_EQ(write(write_end.fd(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void CloseWriteEnd() { const Descriptor closed(std::move(write_end)); }

  Descriptor read_end, write_end;
};

// Returns a pipe that holds `text`, at most 64 KiB, and then ends.
inline Pipe PipeOf(std::string_view text) {
  Pipe pipe;
  pipe.Write(text);
  pipe.CloseWriteEnd();
  return pipe;
}

}  // namespace kvasir::cli
