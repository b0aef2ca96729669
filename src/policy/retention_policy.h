// RetentionPolicy: which of its tokens a running sequence keeps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "kvasir/retention.h"
#include "kvasir/status.h"

namespace kvasir {

// A RetentionChoice for a prompt: all numbers are known. What the token at a position sees follows
// from them, the position and, with `heavy`, what tokens before it weighed; never from what was
// cached or drafted. Pure: it has no clock and allocates nothing. Immutable.
class RetentionPolicy {
 public:
  // Rows of a sequence in a step, at most, from inexact_from() on: so its blocks are bounded.
  static constexpr uint32_t kMaxRows = 64;
  // Tokens before a decision point whose weights it looks at.
  static constexpr uint32_t kScoredTokens = 32;

  // kInvalidArgument names the field (`retention.budget`, ...) and what it may be. REQUIRES: the
  // choice's policy is not kFull.
  struct Text {
    uint32_t ctx_size;
    uint32_t prompt_tokens;
    std::optional<uint32_t> keep = {};  // RetentionChoice::keep, with the BOS
    uint32_t system_tokens = 0;         // of a first message that is the system's; 0: it is not
    // false: the model has no layer that sees all tokens, so nothing ever changes.
    bool is_dropped = true;
    // Positions that the model was trained for.
    uint32_t max_positions = std::numeric_limits<uint32_t>::max();
  };
  static Result<RetentionPolicy> Create(const RetentionChoice& choice, const Text& text);

  Retention policy() const { return policy_; }
  bool is_heavy() const { return policy_ == Retention::kHeavy; }
  uint32_t budget() const { return budget_; }
  uint32_t sinks() const { return sinks_; }
  uint32_t recent() const { return recent_; }
  uint32_t exact_tokens() const { return exact_tokens_; }

  // Returns the first position whose token does not see all tokens before it.
  uint32_t inexact_from() const { return inexact_from_; }
  bool IsInexact(uint32_t position) const { return position >= inexact_from(); }
  // Returns the first token that a sequence computes itself, whatever others have of it.
  uint32_t match_end() const { return inexact_from_ - (is_heavy() ? kScoredTokens : 0); }
  // Returns how many rows a step may have from a position on: exact rows and others are apart.
  uint32_t RowsFrom(uint32_t position) const {
    if (!IsInexact(position)) return inexact_from() - position;
    if (!is_heavy()) return kMaxRows;
    const uint32_t end = position < max_positions_ ? max_positions_ : ~uint32_t{0};
    return std::min({kMaxRows, NextDecision(position) - position, end - position});
  }
  // Returns where drafted rows end that a row at a position has after it.
  uint32_t DraftEnd(uint32_t position) const {
    if (!is_heavy()) return IsInexact(position) ? ~uint32_t{0} : inexact_from();
    // A rejected row's weights would stay in the sums.
    const uint32_t end = std::max(position + 1, NextDecision(position) - kScoredTokens);
    return position < max_positions_ ? std::min(end, max_positions_) : end;
  }
  // Returns how many tokens' blocks a sequence holds from inexact_from() on, at most.
  uint32_t MostTokens(uint32_t block_tokens) const { return budget_ + kMaxRows + 2 * block_tokens; }

  // window and sinks+window.
  // Returns how many of the last tokens a token sees from inexact_from() on, its own included.
  uint32_t window() const { return budget_ - sinks_; }
  // Returns the position that the first tokens are asked from.
  uint32_t sink_query_position() const { return budget_ - 1; }
  // Returns the first of the last tokens that the token at a position sees.
  uint32_t FirstSeen(uint32_t position) const {
    return IsInexact(position) ? position + 1 - window() : 0;
  }

  // heavy. Decision points that may drop: inexact_from(), then each multiple of 64 that is at least
  // 32 later. Until the next one a token sees what the last one kept, and all since.
  // Returns the first one after a position.
  uint32_t NextDecision(uint32_t position) const {
    if (!IsInexact(position)) return inexact_from_;
    const uint32_t least = std::max(position + 1, exact_tokens_ + kDecisionGap);
    return static_cast<uint32_t>(RoundUp(least, kDecisionStep));
  }
  bool IsDecision(uint32_t position) const {
    return IsInexact(position) && NextDecision(position - 1) == position;
  }
  // Returns whether the weights of the token at a position count at the next decision.
  bool IsScored(uint32_t position) const {
    return is_heavy() && NextDecision(position) - position <= kScoredTokens;
  }
  // Return the first blocks that stay for ever, and the first of those that stay as the last ones.
  uint32_t sink_blocks() const { return static_cast<uint32_t>(CeilDiv(sinks_, kHeavyBlock)); }
  uint32_t FirstRecentBlock(uint32_t position) const { return (position - recent_) / kHeavyBlock; }
  // Returns the position that the blocks of the sinks are asked from, where that is not the
  // token's: no distance is longer than those that the model was trained for.
  std::optional<uint32_t> SinkPosition(uint32_t position) const {
    return position < max_positions_ ? std::nullopt : std::optional(max_positions_ - 1);
  }

  struct HeldBlock {
    uint32_t block;  // of the text
    float sum;       // of the weights that the kScoredTokens tokens before gave it
    float score = 0;
    bool stays = true;
  };
  // Decides at a decision point which of a sequence's blocks stay: fills in `score` and `stays`.
  // Returns false, and all stay, while at most `budget` tokens are held and all distances are
  // short. `held`: ascending, all of them; the last one may be partial. O(n log n).
  bool Decide(uint32_t position, std::span<HeldBlock> held) const;

 private:
  static constexpr uint32_t kDecisionStep = 64, kDecisionGap = 32;

  RetentionPolicy() = default;
  Status SetHeavy(const RetentionChoice& choice, const Text& text);
  uint32_t FirstDrop() const;
  bool IsFar(uint32_t block, uint32_t position) const;

  Retention policy_ = Retention::kWindow;
  uint32_t budget_ = 0, sinks_ = 0, recent_ = 0, exact_tokens_ = 0, inexact_from_ = 0;
  uint32_t max_positions_ = 0;
};

}  // namespace kvasir
