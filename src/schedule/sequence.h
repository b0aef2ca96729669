// Sequence: one choice of a request while it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cache/kv_sequence.h"
#include "chat/answer_parser.h"
#include "grammar/matcher.h"
#include "kvasir/types.h"
#include "sampling/indent_limit.h"
#include "schedule/block_sums.h"
#include "schedule/draft.h"
#include "schedule/format_choice.h"
#include "schedule/stop_matcher.h"
#include "text/tokenizer.h"

namespace kvasir {

// What a sequence has dropped by what its tokens weighed (RetentionPolicy's heavy).
struct HeavyState {
  BlockSums::Slot sums;     // of the tokens before its next decision, while they are computed
  uint32_t decided_at = 0;  // the last decision point that it passed; 0: none
  uint32_t decisions = 0;   // that dropped blocks
  uint32_t dropped = 0;     // tokens

  HeavyState Copy() const { return {sums.Copy(), decided_at, decisions, dropped}; }
};

// How far the text of an answer is certain.
struct TextState {
  TextStream stream;
  StopMatcher stop;
  std::optional<IndentLimit> indent = {};
  bool has_line_end = false;
};

// Tokens, BlockTable and text state of one generation. Of `tokens`, the first kv.num_committed()
// are computed; the rest waits for the next steps. States: computing its prompt (tokens.size() ==
// the prompt's), generating, done (kv is empty). Engine thread only.
struct Sequence {
  uint32_t choice = 0;
  std::vector<TokenId> tokens;  // prompt and answer; reserved to its largest size
  KvSequence kv;
  bool done = false;
  HeavyState retained;
  uint32_t num_computed = 0;      // when it was preempted: tokens that had been computed
  bool long_rope = false;         // rotated by the long factors of RoPE longrope
  uint64_t token_ns = 0;          // when its last token was sampled; 0: no token yet
  uint32_t next_logits = 0;       // next position for on_logits
  std::optional<TextState> text;  // absent: the answer has no text
  std::optional<Matcher> format;  // where token `format_end` stands in the request's format
  uint32_t format_begin = 0, format_end = 0;  // the tokens that it has read
  // While its next token is drawn; from one step to the next while it waits for that: until the
  // format's legal tokens are known it takes no part in steps.
  std::unique_ptr<FormatChoice> format_choice;
  std::optional<AnswerParser> thought;  // while an answer may get max_thought_tokens
  uint32_t thought_tokens = 0;
  Draft draft;  // of its next tokens, for the step that is planned
  DraftCheck check;
  uint32_t predicted = 0;        // index in the request's prediction that was drafted last
  bool left_prediction = false;  // the answer is not the prediction's beginning

  // Begins to read a format with the next token.
  void BeginFormat(const std::shared_ptr<const Grammar>& grammar) {
    format.emplace(grammar);
    format_begin = format_end = static_cast<uint32_t>(tokens.size());
  }
  // Gives the memory back that the place in the format takes: it is found again from the tokens.
  void LeaveFormat() {
    format_choice.reset();
    if (format) format = format->AtStart();
    format_end = format_begin;
  }
  bool waits_for_format() const { return format_choice && format_choice->waits(); }
  uint32_t num_pending() const { return static_cast<uint32_t>(tokens.size()) - kv.num_committed(); }
};

}  // namespace kvasir
