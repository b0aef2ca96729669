// StartThread: a thread, or why the system refuses one.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/result.h"

namespace kvasir {

inline tl::unexpected<Error> NoThread(const char* what, const std::system_error& e) {
  return Fail(Code::kExhausted,
              "{}: the system refuses another thread: {}; raise the limit (ulimit -u, or pids of "
              "the container), end other processes, or lower --threads",
              what, e.code().message());
}

// Runs `body` in a thread, out of which nothing may be thrown. kExhausted: the system has no thread
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
