#include "remote/daily_note.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "base/atomic_file.h"
#include "base/log.h"

namespace kvasir {
namespace {

void LogNotKept(const char* why) {
  Log(LogLevel::kWarning, "remote tier: the day's written bytes are not kept over a restart",
      LogField("why", why));
}

}  // namespace

uint64_t DailyNote::AheadOf(uint64_t daily_bytes) { return std::min(daily_bytes / 64, kMostAhead); }

DailyNote::DailyNote(const std::string& folder, uint64_t ahead) : ahead_(ahead) {
  if (folder.empty()) return;
  std::error_code error;
  if (std::filesystem::create_directories(folder, error)) chmod(folder.c_str(), 0700);
  Descriptor file(open((folder + "/written").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file || flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
    LogNotKept(file ? "another process counts there" : std::strerror(errno));
    return;
  }
  file_ = std::move(file);
  std::array<char, 64> text;
  const ssize_t got = pread(file_.fd(), text.data(), text.size(), 0);
  const char* const end = text.data() + std::max<ssize_t>(got, 0);
  uint64_t day = 0, bytes = 0;
  const auto [space, wrong_day] = std::from_chars(text.data(), end, day);
  if (wrong_day != std::errc() || space == end || *space != ' ') return;
  const auto [line, wrong_bytes] = std::from_chars(space + 1, end, bytes);
  if (wrong_bytes != std::errc() || line == end || *line != '\n') return;
  day_ = day;
  bytes_ = bytes;
}

void DailyNote::Cover(uint64_t day, uint64_t bytes) {
  if (bytes > BytesOf(day)) Write(day, bytes + ahead_);
}

void DailyNote::Settle(uint64_t day, uint64_t bytes) {
  if (bytes != BytesOf(day)) Write(day, bytes);
}

// Replaces the bytes of before in one call: a process that is killed leaves either.
void DailyNote::Write(uint64_t day, uint64_t bytes) {
  if (!file_) return;
  day_ = day;
  bytes_ = bytes;
  const std::string text = fmt::format("{} {:020}\n", day, bytes);
  if (!WriteAllAt(file_.fd(), std::as_bytes(std::span(text)), 0)) LogNotKept(std::strerror(errno));
}

}  // namespace kvasir
