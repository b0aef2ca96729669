// PartOfAnswer: thoughts, texts and calls of a whole answer, in the order in which they came.
#pragma once

#include <string_view>
#include <vector>

#include "api/answer.h"

namespace kvasir {

struct PartOfAnswer {
  enum class Kind : uint8_t { kThought, kText, kCall };
  Kind kind;
  std::string_view text = {};      // of a thought or a text; not empty
  const ToolCall* call = nullptr;  // of kCall
};

// Refers to the choice, which must not change meanwhile.
std::vector<PartOfAnswer> PartsOf(const Answer::Choice& choice);

}  // namespace kvasir
