#include "base/log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <ctime>

#include "base/clock.h"

namespace kvasir {
namespace {

// Relaxed: counters, hints and settings that publish no data.
std::atomic<uint64_t> lines_dropped{0};
std::atomic<bool> torn{false};  // the last text was written in part, without its line end
std::atomic<LogLevel> max_level{LogLevel::kInfo};
std::atomic<LogStyle> style{LogStyle::kCommand};

// Standard error, as the log uses it.
struct Sink {
  int fd = STDERR_FILENO;
  bool is_socket = false;
  bool may_block = true;  // a write to fd may block; poll first
};

// Opens a pipe or terminal again with O_NONBLOCK: setting it on the descriptor itself would set it
// for all processes that share it. REQUIRES: descriptor 2 is open.
Sink OpenSink() {
  Sink sink;
  struct stat about;
  const int flags = fcntl(STDERR_FILENO, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY || fstat(STDERR_FILENO, &about) != 0) {
    return sink;
  }
  sink.is_socket = S_ISSOCK(about.st_mode);
  sink.may_block = S_ISFIFO(about.st_mode) || S_ISCHR(about.st_mode);
  if (!sink.may_block) return sink;
  const int fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd >= 0) sink = {.fd = fd, .is_socket = false, .may_block = false};
  return sink;  // cannot open again: another user's pipe, or no /proc
}

ssize_t WriteOnce(const Sink& sink, std::string_view text) {
  if (sink.is_socket) {
    return send(sink.fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  if (sink.may_block) {
    pollfd out{sink.fd, POLLOUT, 0};
    if (poll(&out, 1, 0) != 1 || (out.revents & POLLOUT) == 0) return -1;
    text = text.substr(0, PIPE_BUF);  // a writable pipe takes this much at once
  }
  return write(sink.fd, text.data(), text.size());
}

// Writes "2026-11-21T19:02:11.204Z"
std::string TimeText() {
  const int64_t ms = UnixNs() / 1'000'000;
  return fmt::format("{:%FT%T}.{:03}Z", fmt::gmtime(std::time_t{ms / 1000}), ms % 1000);
}

}  // namespace

void LogText(std::string_view text) noexcept {
  if (text.empty()) return;
  static const Sink sink = OpenSink();
  const int error = errno;
  if (torn.load(std::memory_order_relaxed) && WriteOnce(sink, "\n") == 1) {
    torn.store(false, std::memory_order_relaxed);
  }
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t bytes = WriteOnce(sink, text.substr(written));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) break;
    written += static_cast<size_t>(bytes);
  }
  errno = error;
  if (written == text.size()) return;
  const std::string_view rest = text.substr(written);
  if (written > 0 && text[written - 1] != '\n') torn.store(true, std::memory_order_relaxed);
  lines_dropped.fetch_add(static_cast<uint64_t>(std::ranges::count(rest, '\n')),
                          std::memory_order_relaxed);
}

uint64_t LogLinesDropped() noexcept { return lines_dropped.load(std::memory_order_relaxed); }

void CountDroppedLogLine() noexcept { lines_dropped.fetch_add(1, std::memory_order_relaxed); }

void SetLogLevel(LogLevel level) noexcept { max_level.store(level, std::memory_order_relaxed); }

void SetLogStyle(LogStyle is) noexcept { style.store(is, std::memory_order_relaxed); }

bool IsLogged(LogLevel level) noexcept {
  return level <= max_level.load(std::memory_order_relaxed);
}

std::string log_internal::FieldText(std::string_view key, std::string_view value) {
  if (!value.empty() && value.find_first_of(" =\"\\") == value.npos) {
    return fmt::format(" {}={}", key, value);
  }
  std::string quoted;
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return fmt::format(" {}=\"{}\"", key, quoted);
}

void log_internal::WriteLine(LogLevel level, std::string_view message, std::string_view fields) {
  std::string line =
      style.load(std::memory_order_relaxed) == LogStyle::kServer ? TimeText() + " " : "kvasir: ";
  if (level != LogLevel::kInfo) {
    line.append(kLogLevelNames[static_cast<size_t>(level)]).append(": ");
  }
  line.append(message).append(fields);
  std::ranges::replace_if(
      line, [](char c) { return (c >= 0 && c < ' ') || c == 0x7f; }, '?');
  LogText(line += '\n');
}

bool FillStandardDescriptors() noexcept {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free number, which is this one. Read-only, so that writes fail:
    // results that no one gets must not look delivered, and log lines are counted as dropped.
    const int opened = open("/dev/null", O_RDONLY);
    if (opened != fd) return false;
  }
  return true;
}

void IgnoreBrokenPipes() noexcept { std::signal(SIGPIPE, SIG_IGN); }

}  // namespace kvasir
