#include "cli/progress.h"

#include <unistd.h>

#include <cstdio>

#include "base/clock.h"

namespace kvasir::cli {

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1), start_ns_(MonotonicNs()) {}

void Progress::Show(const std::string& line) {
  const uint64_t now_ns = MonotonicNs();
  if (!terminal_ || now_ns - start_ns_ < 1'000'000'000 || now_ns - shown_ns_ < 100'000'000) return;
  shown_ns_ = now_ns;
  visible_ = true;
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
}

void Progress::Clear() {
  if (!visible_) return;
  visible_ = false;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
}

}  // namespace kvasir::cli
