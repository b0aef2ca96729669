// What the grammars of calls of tools share.
#pragma once

#include <cstdint>

#include "grammar/grammar_source.h"
#include "grammar/json_schema.h"
#include "kvasir/answer_format.h"

namespace kvasir {

inline constexpr uint32_t kMaxMarkBlanks = 8;

// Adds the white space that may stand next to a mark.
inline ExpressionId MarkBlanks(GrammarSource& source) {
  return source.Repeat(source.Class({{U'\t', U'\n'}, {U'\r', U'\r'}, {U' ', U' '}}), 0,
                       kMaxMarkBlanks);
}

inline SchemaStrictness StrictnessOf(const AnswerFormat::Tool& tool) {
  return tool.is_strict ? SchemaStrictness::kStrict : SchemaStrictness::kLoose;
}

// Tells whether a client relies on the tool's schema: only then an unsupported one is an error.
inline bool ReliesOnSchema(const AnswerFormat& format, const AnswerFormat::Tool& tool) {
  return format.must_call || tool.is_strict;
}

}  // namespace kvasir
