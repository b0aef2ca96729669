#include "base/random_bytes.h"

#include <sys/random.h>

#include <cerrno>

#include "base/system_error.h"

namespace kvasir {

Status FillRandom(std::span<uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = getrandom(bytes.data(), bytes.size(), 0);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<size_t>(count));
    } else if (errno != EINTR) {
      return FailErrno(errno, "cannot get random numbers from the system");
    }
  }
  return {};
}

}  // namespace kvasir
