// The ranges of EngineOptions.
#pragma once

#include <cstdint>

#include "kvasir/drafts.h"

namespace kvasir {

// What a field of EngineOptions may be, ends included. Engine::Load and the flags that set it take
// it from here.
struct EngineRange {
  uint32_t least, most;
};

inline constexpr EngineRange kParallelRange{1, 4096};
inline constexpr EngineRange kMaxQueuedRange{0, 1 << 20};
inline constexpr EngineRange kMaxQueueMsRange{1, 86'400'000};  // a day
inline constexpr EngineRange kTargetItlMsRange{0, 3'600'000};  // an hour
inline constexpr EngineRange kDraftMaxRange{0, kMaxDraft};
inline constexpr EngineRange kMaxTenantsRange{1, 1 << 14};  // with two Identities each: 2^15
inline constexpr EngineRange kStepTokensRange{1, 1 << 16};
inline constexpr EngineRange kThreadsRange{1, 1024};
inline constexpr EngineRange kBlockTokensRange{16, 1024};  // multiples of its least value

inline constexpr EngineRange kMaxLoraRankRange{1, 1 << 12};
inline constexpr EngineRange kMaxLorasRange{1, 256};

inline constexpr double kMaxKvHeadroom = 0.5;  // kv_headroom: 0 to this
inline constexpr uint64_t kMinRequestMemoryBytes = uint64_t{16} << 20;

}  // namespace kvasir
