#include "grammar/grammar_text.h"

#include <vector>

#include "base/json_tree.h"
#include "base/result.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/regular_expression.h"

namespace kvasir {
namespace {

ExpressionId AsItIs(GrammarSource* source, std::vector<CharRange> ranges) {
  return source->Class(std::move(ranges));
}

Result<ExpressionId> AddTexts(const JsonValue& list, GrammarSource* source) {
  std::vector<ExpressionId> choices;
  if (list.is_array()) {
    for (const JsonValue& item : list.items()) {
      if (!item.is_string()) return Fail(Code::kInvalidArgument, "a choice is not a string");
      choices.push_back(source->Literal(item.text()));
      KV_TRY(source->CheckSize());
    }
  }
  if (choices.empty()) return Fail(Code::kInvalidArgument, "the list of choices is empty");
  return source->Choice(choices);
}

}  // namespace

Result<ExpressionId> AddGrammarText(FormatLanguage language, std::string_view text,
                                    JsonText* json) {
  if (language == FormatLanguage::kGbnf) return AddGbnf(text, json->source());
  if (language == FormatLanguage::kRegularExpression) {
    return AddRegularExpression(text, Extent::kWhole, AsItIs, json->source());
  }
  if (text.size() > kMaxGrammarBytes) {
    return Fail(Code::kInvalidArgument, "the text has {} bytes (at most {})", text.size(),
                kMaxGrammarBytes);
  }
  JsonTree tree;
  const auto value = tree.Parse(text);
  if (!value) {
    return Fail(Code::kInvalidArgument, "the text is not JSON, or nests more than 128 deep");
  }
  if (language == FormatLanguage::kTexts) return AddTexts(*value, json->source());
  return AddJsonSchema(*value,
                       language == FormatLanguage::kStrictJsonSchema ? SchemaStrictness::kStrict
                                                                     : SchemaStrictness::kLoose,
                       json);
}

Result<std::shared_ptr<const Grammar>> CompileGrammarText(FormatLanguage language,
                                                          std::string_view text) {
  GrammarSource source;
  JsonText json(&source);
  const RuleId root = source.AddRule("answer");
  KV_ASSIGN(const ExpressionId expression, AddGrammarText(language, text, &json));
  KV_TRY(source.CheckSize());
  source.Define(root, expression);
  return Grammar::Compile(source, root);
}

}  // namespace kvasir
