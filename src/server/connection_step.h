// Steps of a connection, which an exception must not lead out of.
#pragma once

#include <exception>

#include "base/log.h"

namespace kvasir {

// Runs `step`. Returns false after an exception (usually std::bad_alloc), which it logs: the
// connection must end.
template <typename Step>
bool RunLogged(Step&& step) noexcept {
  try {
    step();
    return true;
  } catch (const std::exception& e) {
    Log(LogLevel::kError, "a connection ended", LogField("reason", e.what()));
  } catch (...) {
    Log(LogLevel::kError, "a connection ended", LogField("reason", "unknown error"));
  }
  return false;
}

// Runs one step of an end; an exception must not stop the other steps.
template <typename Step>
void RunQuietly(Step&& step) noexcept {
  try {
    step();
  } catch (...) {
  }
}

}  // namespace kvasir
