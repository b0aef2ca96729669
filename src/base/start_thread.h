// StartThread: starts a thread, or returns why the system refuses one.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/result.h"

namespace kvasir {

inline tl::unexpected<Error> NoThread(const char* what, const std::system_error& e) {
  return Fail(Code::kExhausted,
              "{}: the system refuses another thread: {}; raise the limit (ulimit -u, "
              "ulimit -v for its stack, or pids of the container), end other processes, or lower "
              "--threads",
              what, e.code().message());
}

// Runs `body`, which must not throw, in a new thread. kExhausted when the system refuses a thread
// for `what`.
template <typename Body>
Result<std::thread> StartThread(const char* what, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& e) {
    return NoThread(what, e);
  }
}

}  // namespace kvasir
