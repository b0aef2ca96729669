// Errors of the operating system as Error.
#pragma once

#include <cstring>
#include <utility>

#include "base/result.h"

namespace kvasir {

// kNotFound, kPermissionDenied, kExhausted (the disk is full), kInvalidArgument (an invalid name),
// else kIoError.
Code CodeOfErrno(int error);

// Returns an error whose message ends with the system's text: "image x: cannot write: Disk full".
template <typename... Args>
tl::unexpected<Error> FailErrno(int error, fmt::format_string<Args...> format, Args&&... args) {
  return Fail(CodeOfErrno(error), "{}: {}", fmt::format(format, std::forward<Args>(args)...),
              std::strerror(error));
}

}  // namespace kvasir
