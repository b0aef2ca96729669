// RetentionPolicy: which of its tokens a running sequence keeps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kvasir/retention.h"
#include "kvasir/status.h"

namespace kvasir {

// A RetentionChoice for a prompt: all numbers are known. What the token at a position sees follows
// from them and the position alone, never from what was cached or drafted. Pure: it has no clock
// and allocates nothing. Immutable.
class RetentionPolicy {
 public:
  // Rows of a sequence in a step, at most, from inexact_from() on: so its blocks are bounded.
  static constexpr uint32_t kMaxRows = 64;

  // kInvalidArgument names the field (`retention.budget`, ...) and what it may be. REQUIRES: the
  // choice's policy is not kFull.
  struct Text {
    uint32_t ctx_size;
    uint32_t prompt_tokens;
    std::optional<uint32_t> keep = {};  // RetentionChoice::keep, with the BOS
    // false: the model has no layer that sees all tokens, so nothing ever changes.
    bool is_dropped = true;
  };
  static Result<RetentionPolicy> Create(const RetentionChoice& choice, const Text& text);

  Retention policy() const { return policy_; }
  uint32_t budget() const { return budget_; }
  uint32_t sinks() const { return sinks_; }
  uint32_t exact_tokens() const { return exact_tokens_; }

  // Returns the first position whose token does not see all tokens before it.
  uint32_t inexact_from() const { return inexact_from_; }
  bool IsInexact(uint32_t position) const { return position >= inexact_from(); }
  // Returns how many of the last tokens a token sees from inexact_from() on, its own included.
  uint32_t window() const { return budget_ - sinks_; }
  // Returns the position that the first tokens are asked from.
  uint32_t sink_query_position() const { return budget_ - 1; }
  // Returns the first of the last tokens that the token at a position sees.
  uint32_t FirstSeen(uint32_t position) const {
    return IsInexact(position) ? position + 1 - window() : 0;
  }
  // Returns how many rows a step may have from a position on: exact rows and others are apart.
  uint32_t RowsFrom(uint32_t position) const {
    return IsInexact(position) ? kMaxRows : inexact_from() - position;
  }
  // Returns how many tokens' blocks a sequence holds from inexact_from() on, at most.
  uint32_t MostTokens(uint32_t block_tokens) const { return budget_ + kMaxRows + 2 * block_tokens; }

 private:
  RetentionPolicy() = default;

  Retention policy_ = Retention::kWindow;
  uint32_t budget_ = 0, sinks_ = 0, exact_tokens_ = 0, inexact_from_ = 0;
};

}  // namespace kvasir
