// HeadComparison: how a chat's prompt differs from that of an earlier one, which its request names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace kvasir {

// Why the earlier prompt is not the beginning of this one.
enum class HeadChange : uint8_t {
  kUnavailable,  // nothing can be said: other fields changed, or too little of it is known
  kUnknown,      // the caller asked no such chat lately
  kNone,         // it is the beginning
  kModel,
  kTools,
  kSystem,
  kMessages,
};

// Set before the answer begins (PromptHeads::Compare); then immutable.
struct HeadComparison {
  std::string with;  // the id of the earlier answer
  HeadChange change = HeadChange::kUnavailable;
  uint32_t tokens = 0;    // of the earlier prompt
  bool is_whole = false;  // all of its lines were compared

  // Returns how many tokens of the earlier prompt did not come from the cache.
  uint32_t missed(uint32_t cached) const { return tokens - std::min(tokens, cached); }
  // Returns the change. Equal lines say nothing where there are more, and tokens are missing.
  HeadChange ChangeWith(uint32_t cached) const {
    constexpr uint32_t kRest = 64;  // tokens: of blocks that begin, and where answers begin
    const bool may_differ = !is_whole && missed(cached) > kRest;
    return change == HeadChange::kNone && may_differ ? HeadChange::kUnavailable : change;
  }
};

}  // namespace kvasir
