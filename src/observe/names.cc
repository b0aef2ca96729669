// Names of what is counted, as labels have them.
#include "kvasir/request_stats.h"
#include "kvasir/request_trace.h"

namespace kvasir {

const char* ToString(RejectReason reason) {
  static constexpr const char* kNames[] = {"queue_full", "queue_time", "memory",  "rate",
                                           "quota",      "deadline",   "draining"};
  return kNames[static_cast<size_t>(reason)];
}

const char* ToString(FirstTokenPart part) {
  static constexpr const char* kNames[] = {"queue", "shared", "cache", "load", "compute"};
  return kNames[static_cast<size_t>(part)];
}

const char* ToString(TokenPart part) {
  static constexpr const char* kNames[] = {"wait", "cache", "compute", "sample"};
  return kNames[static_cast<size_t>(part)];
}

const char* ToString(PreemptCause cause) {
  static constexpr const char* kNames[] = {"memory", "fairness", "priority", "rope"};
  return kNames[static_cast<size_t>(cause)];
}

}  // namespace kvasir
