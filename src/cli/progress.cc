#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "base/sizes.h"

namespace kvasir::cli {

namespace {

constexpr size_t kBarWidth = 24;

}  // namespace

std::string BarOf(double share) {
  const auto done = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * kBarWidth);
  return "[" + std::string(done, '#') + std::string(kBarWidth - done, '-') + "] ";
}

std::optional<double> ShareIn(std::string_view line) {
  constexpr std::string_view kOf = " of ";
  for (size_t at = line.find(kOf); at != line.npos; at = line.find(kOf, at + 1)) {
    const size_t begin = line.find_last_of(' ', at - std::min<size_t>(at, 1)) + 1;
    const size_t after = at + kOf.size();
    const auto done = ParseUint(line.substr(begin, at - begin));
    const auto all = ParseUint(line.substr(after, line.find(' ', after) - after));
    if (done && all && *all > 0) return static_cast<double>(*done) / static_cast<double>(*all);
  }
  if (!line.ends_with('%')) return std::nullopt;
  line.remove_suffix(1);
  const auto percent = ParseUint(line.substr(line.find_last_of(' ') + 1));
  return percent ? std::optional(static_cast<double>(*percent) / 100) : std::nullopt;
}

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1), start_ns_(MonotonicNs()) {}

void Progress::Show(const std::string& line, std::optional<double> share) {
  const uint64_t now_ns = MonotonicNs();
  if (!terminal_ || now_ns - start_ns_ < 1'000'000'000 || now_ns - shown_ns_ < 100'000'000) return;
  shown_ns_ = now_ns;
  visible_ = true;
  if (!share) share = ShareIn(line);
  std::fprintf(stderr, "\r\033[K%s%s", share ? BarOf(*share).c_str() : "", line.c_str());
  std::fflush(stderr);
}

void Progress::Clear() {
  if (!visible_) return;
  visible_ = false;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
}

}  // namespace kvasir::cli
