#include "api/format_fields.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace kvasir {
namespace {

constexpr std::string_view kAnyObject = R"({"type":"object"})";

// Fields whose value is the format, with the language that it is written in.
struct FormatField {
  std::string_view name;
  FormatLanguage language;
};
constexpr FormatField kFormatFields[] = {
    {"json_schema", FormatLanguage::kJsonSchema},
    {"grammar", FormatLanguage::kGbnf},
    {"guided_json", FormatLanguage::kJsonSchema},
    {"guided_regex", FormatLanguage::kRegularExpression},
    {"guided_choice", FormatLanguage::kTexts},
    {"guided_grammar", FormatLanguage::kGbnf},
};
constexpr FormatField kStructuredOutputs[] = {
    {"json", FormatLanguage::kJsonSchema},
    {"regex", FormatLanguage::kRegularExpression},
    {"choice", FormatLanguage::kTexts},
    {"grammar", FormatLanguage::kGbnf},
};

// Reads formats, and finds out if there are several.
class FormatReader {
 public:
  explicit FormatReader(JsonFields& fields) : fields_(fields) {}

  void Take(FormatLanguage language, std::string text, std::string field) {
    if (found_) {
      return fields_.Fail(field,
                          fmt::format("{} is there too; an answer has one format", found_->field));
    }
    found_ = {language, std::move(text), std::move(field)};
  }
  // Returns the text of a field that has the format itself: schemas as JSON or as its text, others
  // as text, choices as a list.
  void TakeValue(const FormatField& field, const JsonValue& value, std::string path) {
    const bool is_schema = field.language == FormatLanguage::kJsonSchema;
    const bool is_list = field.language == FormatLanguage::kTexts;
    if (value.is_string() && !is_list) {
      if (value.size() > 0) Take(field.language, std::string(value.text()), std::move(path));
    } else if ((is_schema && (value.is_object() || value.is_bool())) ||
               (is_list && value.is_array())) {
      Take(field.language, TextOf(value), std::move(path));
    } else {
      fields_.Fail(path, fmt::format("is {}, not {}", KindOf(value),
                                     is_schema ? "a JSON Schema"
                                     : is_list ? "a list of texts"
                                               : "a text"));
    }
  }
  void TakeResponseFormat(const JsonValue& format);
  void TakeNamedSchema(const JsonValue& named);
  void TakeStructuredOutputs(const JsonValue& outputs);

  std::optional<AnswerFormat::Text> found() && { return std::move(found_); }

 private:
  JsonFields& fields_;
  std::optional<AnswerFormat::Text> found_;
};

void FormatReader::TakeResponseFormat(const JsonValue& format) {
  if (!format.is_object()) {
    return fields_.Fail("response_format", fmt::format("is {}, not an object", KindOf(format)));
  }
  JsonFields inner(format, "response_format.");
  const JsonValue* type = inner.Find("type");
  const std::string_view name = type && type->is_string() ? type->text() : "";
  const JsonValue* schema = name == "text" ? nullptr : inner.Find("schema");  // llama.cpp's
  const JsonValue* outer = name == "json_schema" ? inner.Find("json_schema") : nullptr;
  fields_.TakeUnread(inner);
  if (name == "text") return;
  if (name == "json_object" && !schema) {
    return Take(FormatLanguage::kJsonSchema, std::string(kAnyObject), "response_format");
  }
  if (name != "json_object" && name != "json_schema") {
    return fields_.Fail("response_format",
                        fmt::format(R"(type is {}, not "text", "json_object" or "json_schema")",
                                    type ? FoundText(*type) : "missing"));
  }
  if (outer) return TakeNamedSchema(*outer);
  if (schema) {
    return TakeValue({"", FormatLanguage::kJsonSchema}, *schema, "response_format.schema");
  }
  fields_.Fail("response_format.json_schema", "must be an object with a schema");
}

// Reads OpenAI's {"name", "description", "strict", "schema"}.
void FormatReader::TakeNamedSchema(const JsonValue& named) {
  const std::string path = "response_format.json_schema";
  if (!named.is_object()) return fields_.Fail(path, "must be an object with a schema");
  JsonFields inner(named, path + ".");
  bool is_strict = false;
  inner.Bool("strict", &is_strict);
  for (const char* name : {"name", "description"}) inner.Find(name);  // they change nothing
  const JsonValue* schema = inner.Find("schema");
  fields_.TakeUnread(inner);
  if (inner.error()) return fields_.Fail(*inner.error());
  if (!schema || !schema->is_object()) {
    return fields_.Fail(path + ".schema", "must be a JSON Schema");
  }
  Take(is_strict ? FormatLanguage::kStrictJsonSchema : FormatLanguage::kJsonSchema, TextOf(*schema),
       path + ".schema");
}

void FormatReader::TakeStructuredOutputs(const JsonValue& outputs) {
  if (!outputs.is_object()) {
    return fields_.Fail("structured_outputs", fmt::format("is {}, not an object", KindOf(outputs)));
  }
  JsonFields inner(outputs, "structured_outputs.");
  for (const FormatField& field : kStructuredOutputs) {
    const JsonValue* value = inner.Find(field.name);
    if (value) TakeValue(field, *value, "structured_outputs." + std::string(field.name));
  }
  bool any_object = false;
  inner.Bool("json_object", &any_object);
  if (any_object) {
    Take(FormatLanguage::kJsonSchema, std::string(kAnyObject), "structured_outputs.json_object");
  }
  for (const std::string& name : inner.Unread()) {
    const JsonValue* value = outputs.Find(name);
    const bool says_nothing = !value || value->is_null() || (value->is_bool() && !value->boolean());
    if (!says_nothing) {
      inner.FailUnknown(name, "unknown field (known: json, regex, choice, grammar, json_object)");
    }
  }
  if (inner.error()) fields_.Fail(*inner.error());
}

}  // namespace

std::optional<AnswerFormat::Text> ReadFormatText(JsonFields& fields) {
  FormatReader reader(fields);
  if (const JsonValue* format = fields.Find("response_format")) reader.TakeResponseFormat(*format);
  for (const FormatField& field : kFormatFields) {
    const JsonValue* value = fields.Find(field.name);
    if (value) reader.TakeValue(field, *value, std::string(field.name));
  }
  if (const JsonValue* outputs = fields.Find("structured_outputs")) {
    reader.TakeStructuredOutputs(*outputs);
  }
  return std::move(reader).found();
}

namespace {

// Adds the fields of an inner object that are not known.
void TakeUnreadOf(const JsonValue& object, const char* path,
                  std::initializer_list<const char*> known, JsonFields& fields) {
  if (!object.is_object()) return;
  JsonFields inner(object, path);
  for (const char* name : known) inner.Find(name);
  fields.TakeUnread(inner);
}

}  // namespace

ToolChoice ReadToolChoice(JsonFields& fields) {
  ToolChoice choice;
  const JsonValue* value = fields.Find("tool_choice");
  if (!value) return choice;
  const std::string_view word = value->is_string() ? value->text() : "";
  choice.reads_calls = word != "none";
  choice.must_call = word == "required";
  if (word == "none" || word == "auto" || choice.must_call) return choice;
  const JsonValue* type = value->Find("type");
  const JsonValue* function = value->Find("function");
  const JsonValue* name = function ? function->Find("name") : nullptr;
  TakeUnreadOf(*value, "tool_choice.", {"type", "function"}, fields);
  if (function) TakeUnreadOf(*function, "tool_choice.function.", {"name"}, fields);
  if (!type || !type->is_string() || type->text() != "function" || !name || !name->is_string()) {
    fields.Fail("tool_choice",
                "must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", "
                "\"function\": {\"name\": NAME}}");
    return choice;
  }
  choice.must_call = true;
  choice.only = name->text();
  return choice;
}

}  // namespace kvasir
