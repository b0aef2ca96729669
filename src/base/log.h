// Log: writes lines to standard error; never blocks and never fails its caller.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir {

// Writes whole lines (`text` ends in a newline) to standard error. Drops and counts lines that
// cannot be written at once, because no one reads, the disk is full or the other end is closed.
// Never blocks on a pipe, a socket or a terminal. Thread-safe. A closed pipe raises SIGPIPE; the
// process must ignore it (IgnoreBrokenPipes).
void LogText(std::string_view text) noexcept;

// Returns the lines dropped so far by this process. Thread-safe.
uint64_t LogLinesDropped() noexcept;

// Counts a line that could not be formatted.
void CountDroppedLogLine() noexcept;

enum class LogLevel {
  kError,    // something was lost
  kWarning,  // a problem was repaired, or a person should act
  kInfo,     // what was done, and for whom
  kDebug     // frequent details
};
inline constexpr std::string_view kLogLevelNames[] = {"error", "warning", "info", "debug"};

// The start of each line: "kvasir: " in a short command, the time (UTC) in a server.
enum class LogStyle { kCommand, kServer };

// Writes only lines of `level` and more important ones from now on. Initially kInfo. Thread-safe.
void SetLogLevel(LogLevel level) noexcept;
void SetLogStyle(LogStyle style) noexcept;
bool IsLogged(LogLevel level) noexcept;

// A key and its value; a value with a space, a quote or '=' is quoted.
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

// Writes one line: "2026-11-21T19:02:11.204Z warning: message key=value"; kInfo lines have no
// level. Control characters become '?', so that names from outside cannot forge lines. Otherwise
// like LogText. Must never contain text of a prompt or an answer.
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

// Opens /dev/null for each closed descriptor of 0 to 2, so that a file or socket that is opened
// later does not get its number and is not written to by mistake. Writing to standard output then
// fails as with a closed descriptor. False when /dev/null cannot be opened (errno has the reason).
// Must be called before anything is opened.
bool FillStandardDescriptors() noexcept;

// Makes that from now on writing to a pipe or socket without a reader is an error, not a signal.
void IgnoreBrokenPipes() noexcept;

}  // namespace kvasir
