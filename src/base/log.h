// Log: lines on standard error that can neither hold up nor fail whoever writes them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>
#include <utility>

namespace kvasir {

// Writes whole lines (`text` ends in a newline) to standard error at once. What cannot be written
// now, because nobody reads, the disk is full or the other end is closed, is dropped and its lines
// are counted. Never blocks on a pipe, a socket or a terminal. Thread-safe.
// A closed pipe raises SIGPIPE; the process must ignore it (IgnoreBrokenPipes).
void LogText(std::string_view text) noexcept;

// Lines dropped so far by this process. Thread-safe.
uint64_t LogLinesDropped() noexcept;

// The same for a text that could not even be made.
void CountDroppedLogLine() noexcept;

template <typename... Args>
void Log(fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    LogText(fmt::format(format, std::forward<Args>(args)...));
  } catch (...) {  // no memory
    CountDroppedLogLine();
  }
}

// Opens /dev/null in the place of each of the descriptors 0 to 2 that is closed, so that no file or
// socket that is opened later takes its number and is written to by mistake. Writing to standard
// output then fails as on a closed descriptor. False: /dev/null cannot be opened (errno says why).
// Call it before anything is opened.
bool FillStandardDescriptors() noexcept;

// Writing to a pipe or socket without a reader is an error from here on, not a signal.
void IgnoreBrokenPipes() noexcept;

}  // namespace kvasir
