// Limits of time and memory, for the fuzzers that search for slow inputs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <ctime>

#include "base/check.h"

namespace kvasir {

// CPU time of this thread, from its construction to Check.
class CpuLimit {
 public:
  // Sanitizers and -O1 make this some ten times slower than a release.
  static constexpr double kLeastMs = 1500, kMsPerByte = 0.02;

  CpuLimit() : begin_ms_(NowMs()) {}

  // Aborts when the work on so many bytes took too long.
  void Check(uint64_t bytes) const {
    const double took_ms = NowMs() - begin_ms_;
    const double most_ms = kLeastMs + kMsPerByte * static_cast<double>(bytes);
    if (took_ms > most_ms) {
      std::fprintf(stderr, "%.0f ms of CPU for %llu bytes; at most %.0f\n", took_ms,
                   static_cast<unsigned long long>(bytes), most_ms);
    }
    KV_CHECK(took_ms <= most_ms);
  }

 private:
  static double NowMs() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
  }

  const double begin_ms_;
};

}  // namespace kvasir
