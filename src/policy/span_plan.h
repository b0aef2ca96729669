// SpanPlan: which tokens of a prompt are read where they lie, and which are computed in place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kvasir/prompt_spans.h"
#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir {

// PromptSpans of a prompt whose length is known. What the token at a position sees follows from
// them and the position alone, never from what was cached. A span that stands where it is computed
// is ordinary text; so is one that is short. The last token of a prompt is computed in its place.
// Pure: it has no clock. Immutable.
class SpanPlan {
 public:
  // A span that stands elsewhere than where it is computed, of which some tokens are read: those of
  // [read_begin, read_end). `end`: of the span.
  struct Part {
    uint32_t begin, read_begin, read_end, end;
    uint32_t shift;  // how far after the place where it is computed it stands

    uint32_t read_tokens() const { return read_end - read_begin; }
  };

  // kInvalidArgument names the field (`spans`, `seam`, `span_head`) and what it may be. An error of
  // a span has its index.
  static Result<SpanPlan> Create(const PromptSpans& choice, uint32_t prompt_tokens);

  const PromptSpans& choice() const { return choice_; }
  uint32_t head() const { return head_; }  // tokens of the prompt that parts are computed after
  const std::vector<Part>& parts() const { return parts_; }
  // Returns the tokens of the prompt that a part is computed from: the head, and then the span.
  uint32_t TokensOf(const Part& part) const { return head_ + part.end - part.begin; }
  std::vector<TokenId> TextOf(const Part& part, std::span<const TokenId> prompt) const;

  // Returns the first position whose token may not see all before it as it stands.
  uint32_t inexact_from() const {
    return parts_.empty() ? std::numeric_limits<uint32_t>::max() : parts_.front().begin;
  }
  bool IsInexact(uint32_t position) const { return position >= inexact_from(); }
  // Returns how many parts end at or before a position: a token there sees what is read of them.
  uint32_t NumBefore(uint32_t position) const;
  // Returns how many tokens from a position on may be computed in one step: all are exact or none
  // is, and all see the same parts. 0: the next part is read here.
  uint32_t RowsFrom(uint32_t position) const;
  // Returns how many tokens before a position are read where they lie.
  uint32_t ReadBefore(uint32_t position) const;
  // Returns the whole blocks of the prompt whose tokens are all read where they lie.
  uint32_t BlocksNotWritten(uint32_t block_tokens) const;
  // Returns the blocks that the parts' sequences need beside those of the head.
  uint64_t BlocksOfParts(uint32_t block_tokens) const;
  uint64_t BlocksOf(const Part& part, uint32_t block_tokens) const;

 private:
  SpanPlan() = default;

  PromptSpans choice_;
  uint32_t head_ = 0;
  std::vector<Part> parts_;
};

}  // namespace kvasir
