// FirstTokenTime: where a request's time goes until its first token.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kvasir/request_stats.h"

namespace kvasir {

// States: queued (also while it is preempted), following a leader, waiting for its blocks from a
// tier, running, done. The time in each
// belongs to a part, and that of running is split into what the cache took and the rest, so all
// parts add up to the time from Start to kDone. Engine thread only.
class FirstTokenTime {
 public:
  enum class State { kQueued, kFollows, kLoads, kRuns, kDone };

  void Start(uint64_t submitted_ns) { since_ns_ = submitted_ns; }
  // `cache_ns`: time inside the cache so far, of all requests: one waits for the calls of all that
  // are in its steps. Does nothing after kDone.
  void Enter(State state, uint64_t now_ns, uint64_t cache_ns) {
    if (state_ == State::kDone) return;
    const uint64_t passed_ns = now_ns - std::min(now_ns, since_ns_);
    if (state_ == State::kRuns) {
      const uint64_t in_cache_ns = std::min(passed_ns, cache_ns - cache_before_ns_);
      Part(FirstTokenPart::kCache) += in_cache_ns;
      Part(FirstTokenPart::kCompute) += passed_ns - in_cache_ns;
    } else {
      Part(PartOf(state_)) += passed_ns;
    }
    state_ = state;
    since_ns_ = now_ns;
    cache_before_ns_ = cache_ns;
  }
  uint64_t part_ns(FirstTokenPart part) const { return parts_ns_[static_cast<size_t>(part)]; }

 private:
  static FirstTokenPart PartOf(State state) {
    switch (state) {
      case State::kFollows:
        return FirstTokenPart::kShared;
      case State::kLoads:
        return FirstTokenPart::kLoad;
      default:
        return FirstTokenPart::kQueue;
    }
  }
  uint64_t& Part(FirstTokenPart part) { return parts_ns_[static_cast<size_t>(part)]; }

  State state_ = State::kQueued;
  uint64_t since_ns_ = 0, cache_before_ns_ = 0;
  std::array<uint64_t, kNumFirstTokenParts> parts_ns_{};
};

}  // namespace kvasir
