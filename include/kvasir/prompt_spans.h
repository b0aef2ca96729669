// PromptSpans: parts of a prompt that are read where they lie in the cache, as a user asks for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// Tokens [begin, end) of a prompt.
struct PromptSpan {
  uint32_t begin = 0, end = 0;
  bool operator==(const PromptSpan&) const = default;
};

inline constexpr size_t kMaxSpans = 64;         // of a prompt
inline constexpr uint32_t kMinSpanTokens = 32;  // a shorter one is plain text
inline constexpr uint32_t kMaxSeamTokens = 256;
inline constexpr uint32_t kDefaultSeamTokens = 32;

// Each span is computed after the first `head` tokens of the prompt alone, and is kept and found
// like every prompt. In its prompt its first `seam` tokens are computed again, and the others are
// read where they lie. docs/spans.md has the definition.
struct PromptSpans {
  std::vector<PromptSpan> spans;  // ascending, apart
  uint32_t seam = kDefaultSeamTokens;
  std::optional<uint32_t> head;  // absent: all tokens before the first span

  bool operator==(const PromptSpans&) const = default;
};

// Reads "BEGIN:END,BEGIN:END". kInvalidArgument (field "spans") says what is wrong.
Result<std::vector<PromptSpan>> ParsePromptSpans(std::string_view text);

// What became of a request's spans, in tokens.
struct SpansReceipt {
  uint32_t count = 0;  // spans that were asked for
  uint32_t plain = 0;  // of them, those with less than kMinSpanTokens
  // Tokens of the others: read from the cache; computed as spans; computed in their place.
  uint32_t reused_tokens = 0, computed_tokens = 0, seam_tokens = 0;
  // The first token that does not see all before it as it stands; absent: each does.
  std::optional<uint32_t> inexact_from;
};

}  // namespace kvasir
