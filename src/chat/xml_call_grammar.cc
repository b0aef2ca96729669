#include "chat/xml_call_grammar.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "chat/call_grammar.h"
#include "grammar/json_schema.h"
#include "grammar/schema_keywords.h"

namespace kvasir {
namespace {

tl::unexpected<Error> NotInXml(const AnswerFormat::Tool& tool, std::string_view path) {
  return Fail(Code::kInvalidArgument,
              "tool '{}': parameters: at '#{}': not supported with this model's calls, whose texts "
              "stand without quotes",
              tool.name, path);
}

// Returns an error where a call's XML cannot say what the schema does.
Status CheckXml(const AnswerFormat::Tool& tool, const JsonValue& parameters) {
  const JsonValue* properties = parameters.Find("properties");
  for (const auto& [key, value] : parameters.members()) {
    if (key == "type" && (!value.is_string() || value.text() != "object")) {
      return NotInXml(tool, "/type");
    }
    const bool is_known = key == "type" || key == "properties" || key == "required" ||
                          (key == "additionalProperties" && value.is_bool());
    if (!is_known && IsConstraint(key)) return NotInXml(tool, "/" + std::string(key));
    if (key != "required" || !value.is_array()) continue;
    for (const JsonValue& name : value.items()) {  // any other parameter is never written
      if (name.is_string() && properties && properties->Find(name.text())) continue;
      return NotInXml(tool, "/required");
    }
  }
  if (!properties || !properties->is_object()) return {};
  for (const auto& [key, value] : properties->members()) {
    if (key.find('>') != std::string_view::npos) {
      return NotInXml(tool, "/properties/" + std::string(key));
    }
  }
  return {};
}

}  // namespace

Result<ExpressionId> XmlCallGrammar::Function(const AnswerFormat::Tool& tool) {
  std::vector<ExpressionId> parts = {Literal("<function=" + tool.name + ">"), MarkBlanks(source_)};
  const auto parsed = tree_.Parse(tool.parameters.empty() ? "{}" : tool.parameters);
  if (!parsed || !parsed->is_object()) {
    return Fail(Code::kInvalidArgument, "tool '{}': parameters is not an object", tool.name);
  }
  if (ReliesOnSchema(format_, tool)) KV_TRY(CheckXml(tool, *parsed));
  const JsonValue* properties = parsed->Find("properties");
  const JsonValue* required = parsed->Find("required");
  std::set<std::string_view> needed;
  if (required && required->is_array()) {
    for (const JsonValue& name : required->items()) {
      if (name.is_string()) needed.insert(name.text());
    }
  }
  if (properties && properties->is_object()) {
    for (const auto& [key, unused] : properties->members()) {
      KV_ASSIGN(const ExpressionId value, Value(tool, *parsed, key));
      const ExpressionId parameter = source_.Sequence(
          {Literal("<parameter=" + std::string(key) + ">"), value, MarkBlanks(source_)});
      parts.push_back(needed.contains(key) ? parameter : source_.Optional(parameter));
      KV_TRY(source_.CheckSize());
    }
  }
  parts.push_back(Literal("</function>"));
  return source_.Sequence(parts);
}

// Adds the value of a property, with the mark that ends it.
Result<ExpressionId> XmlCallGrammar::Value(const AnswerFormat::Tool& tool, const JsonValue& schema,
                                           std::string_view property) {
  const bool relies = ReliesOnSchema(format_, tool);
  const std::string end = "</parameter>";
  const JsonValue& own = *schema.Find("properties")->Find(property);
  const JsonValue* type = own.Find("type");
  const bool is_text = type && type->is_string() && type->text() == "string";
  std::vector<JsonValue> constants;
  if (const JsonValue* list = own.Find("enum"); list && list->is_array()) {
    constants.assign(list->items().begin(), list->items().end());
  }
  if (const JsonValue* one = own.Find("const")) constants = {*one};
  if (is_text && constants.empty()) {
    for (const char* key : {"pattern", "format", "minLength", "maxLength"}) {
      if (own.Find(key) && relies) {
        return NotInXml(tool, fmt::format("/properties/{}/{}", property, key));
      }
    }
    const std::string ends[] = {end};
    return source_.Until(ends);
  }
  if (is_text) {
    // What is read of it is without one line end on each side, and otherwise as it stands.
    std::vector<ExpressionId> texts;
    for (const JsonValue& one : constants) {
      if (!one.is_string() || one.text().find(end) != std::string_view::npos) continue;
      const std::string text(one.text());
      texts.push_back(Literal("\n" + text + "\n"));
      if (!text.starts_with('\n') && !text.ends_with('\n')) texts.push_back(Literal(text));
    }
    if (!texts.empty()) return source_.Sequence({source_.Choice(texts), Literal(end)});
    if (relies) return NotInXml(tool, "/properties/" + std::string(property));
    const std::string ends[] = {end};
    return source_.Until(ends);
  }
  auto value = AddJsonSchema(schema, StrictnessOf(tool), &json_, property);
  if (!value && relies) {
    return Fail(Code::kInvalidArgument, "tool '{}': parameters: {}", tool.name,
                value.error().message);
  }
  return source_.Sequence(
      {MarkBlanks(source_), value ? *value : json_.AnyValue(), MarkBlanks(source_), Literal(end)});
}

}  // namespace kvasir
