// What the operating system says, as our errors.
#pragma once

#include <cstring>
#include <utility>

#include "base/result.h"

namespace kvasir {

// kNotFound, kPermissionDenied, kExhausted (no room on the disk), kInvalidArgument (a name that
// cannot be), else kIoError.
Code CodeOfErrno(int error);

// An error whose message ends in what the system says: "image x: cannot write: Disk full".
template <typename... Args>
tl::unexpected<Error> FailErrno(int error, fmt::format_string<Args...> format, Args&&... args) {
  return Fail(CodeOfErrno(error), "{}: {}", fmt::format(format, std::forward<Args>(args)...),
              std::strerror(error));
}

}  // namespace kvasir
