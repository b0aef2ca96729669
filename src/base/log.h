// Log: lines on standard error that can neither hold up nor fail whoever writes them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

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

enum class LogLevel {
  kError,    // something is lost that should not be
  kWarning,  // something did not go as it should and was made good, or needs somebody's hand
  kInfo,     // what was done, and for whom
  kDebug     // what nobody wants to read all day
};
inline constexpr std::string_view kLogLevelNames[] = {"error", "warning", "info", "debug"};

// What begins a line: "kvasir: " of a command, which ends soon, or the time (UTC) of a server.
enum class LogStyle { kCommand, kServer };

// From here on, lines of `level` and of those before it; at first those up to kInfo. Thread-safe.
void SetLogLevel(LogLevel level) noexcept;
void SetLogStyle(LogStyle style) noexcept;
bool IsLogged(LogLevel level) noexcept;

// A key and its value, which stands in quotes where it has a space, a quote or '='.
template <typename T>
struct LogField {
  LogField(std::string_view name, const T& of) : key(name), value(of) {}
  std::string_view key;
  const T& value;
};

namespace log_internal {
std::string FieldText(std::string_view key, std::string_view value);
void WriteLine(LogLevel level, std::string_view message, std::string_view fields);
}  // namespace log_internal

// One line: "2026-11-21T19:02:11.204Z warning: message key=value"; of kInfo without its level.
// Control characters become '?': what the world names makes no lines. As LogText else. No text of a
// prompt or an answer belongs here.
template <typename... Values>
void Log(LogLevel level, std::string_view message, const LogField<Values>&... fields) noexcept {
  if (!IsLogged(level)) return;
  try {
    std::string text;
    ((text += log_internal::FieldText(fields.key, fmt::format("{}", fields.value))), ...);
    log_internal::WriteLine(level, message, text);
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
