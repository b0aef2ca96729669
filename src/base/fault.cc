#include "base/fault.h"

#include <atomic>
#include <utility>

namespace kvasir {
namespace {

// Relaxed: set before the work under test starts; publishes no data.
std::atomic<Fault> active{Fault::kNone};

constexpr std::pair<std::string_view, Fault> kFaults[] = {
    {"stale-block", Fault::kStaleBlock},
    {"wrong-position", Fault::kWrongPosition},
    {"skipped-compare", Fault::kSkippedCompare},
    {"chunk-edge", Fault::kChunkEdge},
    {"foreign-namespace", Fault::kForeignNamespace},
    {"lane-order", Fault::kLaneOrder},
    {"stale-resume", Fault::kStaleResume},
    {"skipped-tag", Fault::kSkippedTag},
    {"stale-slot", Fault::kStaleSlot},
    {"kept-key", Fault::kKeptKey},
    {"lazy-forget", Fault::kLazyForget},
    {"erase-by-first", Fault::kEraseByFirst},
    {"erase-own-only", Fault::kEraseOwnOnly},
    {"foreign-adapter", Fault::kForeignAdapter},
    {"mates-adapter", Fault::kMatesAdapter},
    {"foreign-source", Fault::kForeignSource},
    {"accepted-wrong", Fault::kAcceptedWrong},
    {"kept-draft", Fault::kKeptDraft},
    {"unshifted-sinks", Fault::kUnshiftedSinks},
    {"late-drop", Fault::kLateDrop},
    {"foreign-resume", Fault::kForeignResume},
    {"loose-span", Fault::kLooseSpan},
    {"drafted-score", Fault::kDraftedScore},
    {"deaf-breaker", Fault::kDeafBreaker},
    {"kept-epoch", Fault::kKeptEpoch},
};

}  // namespace

std::optional<Fault> ParseFault(std::string_view name) {
  for (const auto& [known, fault] : kFaults) {
    if (name == known) return fault;
  }
  return std::nullopt;
}

std::string FaultNames() {
  std::string names;
  for (const auto& [name, fault] : kFaults)
    names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

void InjectFault(Fault fault) { active.store(fault, std::memory_order_relaxed); }
bool FaultActive(Fault fault) { return active.load(std::memory_order_relaxed) == fault; }

}  // namespace kvasir
