// ErrorWindow: whether a disk has failed too often within a minute.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace kvasir {

// Thread-compatible.
class ErrorWindow {
 public:
  enum class Kind : uint8_t { kError, kStall };

  // Returns true when this was the eighth error or the third stall within a minute.
  bool Count(Kind kind, uint64_t now_ns) {
    uint64_t& oldest = kind == Kind::kStall ? stall_ns_[num_stalls_++ % stall_ns_.size()]
                                            : error_ns_[num_errors_++ % error_ns_.size()];
    oldest = now_ns + 1;  // 0: none yet
    const auto all_recent = [&](const auto& times) {
      return std::ranges::all_of(times,
                                 [&](uint64_t at) { return at > 0 && now_ns < at + kMinuteNs; });
    };
    return all_recent(error_ns_) || all_recent(stall_ns_);
  }
  void Clear() {
    error_ns_ = {};
    stall_ns_ = {};
  }

 private:
  static constexpr uint64_t kMinuteNs = 60'000'000'000;
  std::array<uint64_t, 8> error_ns_ = {};
  std::array<uint64_t, 3> stall_ns_ = {};
  uint64_t num_errors_ = 0, num_stalls_ = 0;
};

}  // namespace kvasir
