#include "kvasir/engine.h"

namespace kvasir {

const char* ToString(TierStats::State state) {
  switch (state) {
    case TierStats::State::kOn:
      return "on";
    case TierStats::State::kWaiting:
      return "waiting";
    case TierStats::State::kBroken:
      return "broken";
    case TierStats::State::kFull:
      return "full";
  }
  return "";
}

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

const char* ToString(Pooling pooling) { return pooling == Pooling::kMean ? "mean" : "last"; }

std::optional<Pooling> ParsePooling(std::string_view name) {
  for (const Pooling pooling : {Pooling::kLast, Pooling::kMean}) {
    if (name == ToString(pooling)) return pooling;
  }
  return std::nullopt;
}

}  // namespace kvasir
