// Draft: tokens that may come next in an answer, and how far a step has checked them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kvasir/drafts.h"
#include "kvasir/types.h"

namespace kvasir {

struct Draft {
  std::array<TokenId, kMaxDraft> tokens;
  uint32_t num_tokens = 0;
  DraftSource source = DraftSource::kMemory;
  uint32_t num_equal = 0;  // tokens before it that are equal where it comes from
  bool withheld = false;   // the draft model was ready, and was not asked

  std::span<const TokenId> all() const { return std::span(tokens).first(num_tokens); }
};

// The rows of a sequence in a step that checks a draft: row 0 is of its last token, row i of the
// draft's token i - 1. A row is right once the token before it was drawn; its logits count then.
// States: closed; open (the next row is drawn next) until a drawn token differs from the draft or
// the answer ends or waits; settled (closed again) when what is right is committed.
struct DraftCheck {
  uint32_t num_drafted = 0;  // rows beyond row 0; 0: the sequence has no draft in this step
  uint32_t first_row = 0;    // of the step
  uint32_t position = 0;     // of row 0
  uint32_t num_right = 0;    // rows
  uint32_t num_accepted = 0;
  uint64_t format_steps = 0;  // of the rows' draws
  bool is_open = false;
  bool rejected = false;  // the last draft had a token that was not drawn
};

}  // namespace kvasir
