// XmlCallGrammar: calls of tools that are written as XML.
#pragma once

#include <string_view>

#include "base/json_tree.h"
#include "grammar/grammar_source.h"
#include "grammar/json_text.h"
#include "kvasir/answer_format.h"
#include "kvasir/status.h"

namespace kvasir {

// Writes "<function=NAME>" with a "<parameter=NAME>" for each property, whose texts stand without
// quotes. Properties come in the order of the schema. One thread.
class XmlCallGrammar {
 public:
  // `format` and `json` must outlive it; the expressions are added to the source of `json`.
  XmlCallGrammar(const AnswerFormat& format, JsonText& json)
      : format_(format), source_(*json.source()), json_(json) {}

  // Adds a call of the tool. kInvalidArgument names the tool and the part of its schema that is
  // wrong, or, where a client relies on the schema, that XML cannot say. O(schema).
  Result<ExpressionId> Function(const AnswerFormat::Tool& tool);

 private:
  Result<ExpressionId> Value(const AnswerFormat::Tool& tool, const JsonValue& schema,
                             std::string_view property);
  ExpressionId Literal(std::string_view text) { return source_.Literal(text); }

  const AnswerFormat& format_;
  GrammarSource& source_;
  JsonText& json_;
  JsonTree tree_;
};

}  // namespace kvasir
