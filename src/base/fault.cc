#include "base/fault.h"

namespace kvasir {
namespace {

// Relaxed: a switch set before the work under test starts; it orders nothing.
std::atomic<Fault> active{Fault::kNone};

}  // namespace

std::optional<Fault> ParseFault(std::string_view name) {
  if (name == "stale-block") return Fault::kStaleBlock;
  if (name == "wrong-position") return Fault::kWrongPosition;
  if (name == "skipped-compare") return Fault::kSkippedCompare;
  if (name == "chunk-edge") return Fault::kChunkEdge;
  if (name == "foreign-namespace") return Fault::kForeignNamespace;
  if (name == "lane-order") return Fault::kLaneOrder;
  return std::nullopt;
}

void InjectFault(Fault fault) { active.store(fault, std::memory_order_relaxed); }
bool FaultActive(Fault fault) { return active.load(std::memory_order_relaxed) == fault; }

}  // namespace kvasir
