// Descriptor: an open file that closes itself.
#pragma once

#include <unistd.h>

namespace kvasir {

// Owns a file descriptor, or none when opening failed (errno has the reason). Not copied or moved.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace kvasir
