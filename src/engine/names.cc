#include "kvasir/engine.h"

namespace kvasir {

const char* ToString(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

const char* ToString(PreemptCause cause) {
  static constexpr const char* kNames[] = {"memory", "fairness", "rope"};
  return kNames[static_cast<size_t>(cause)];
}

}  // namespace kvasir
