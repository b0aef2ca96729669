#include "chat/answer_grammar.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/json_tree.h"
#include "base/json_writer.h"
#include "base/result.h"
#include "chat/answer_format.h"
#include "grammar/grammar_text.h"
#include "grammar/json_schema.h"
#include "grammar/schema_document.h"

namespace kvasir {
namespace {

constexpr uint32_t kMaxBlanks = 8;  // next to a mark

// What a mark is read as: its text, and the special token of that text.
std::vector<std::string> SpellingsOf(std::string_view mark) {
  const auto& all = AllMarks();
  const auto number = static_cast<char>(std::ranges::find(all, mark) - all.begin());
  return {std::string(mark), {kMark, number}};
}

// Whether the answer must come to an end that the format has.
bool IsStrict(const AnswerFormat& format) { return format.text || format.must_call; }

class AnswerWriter {
 public:
  explicit AnswerWriter(const AnswerFormat& format) : format_(format) {}

  Result<std::shared_ptr<const Grammar>> Compile(AnswerPart part, size_t dropped_spaces);

 private:
  Result<ExpressionId> Whole();
  // What follows a thought.
  Result<ExpressionId> Body();
  Result<ExpressionId> FreeTextWithCalls();
  Result<ExpressionId> Calls();
  // What follows CallFormat::open, up to the end of what it opened.
  Result<ExpressionId> Opened();
  Result<ExpressionId> OpenedJson();
  Result<ExpressionId> OpenedNamed();
  Result<ExpressionId> OpenedDeepSeek();
  Result<ExpressionId> OpenedXml();
  // {"name", "arguments"} of any tool, and a JSON list of such.
  Result<ExpressionId> Object();
  Result<ExpressionId> List();
  Result<ExpressionId> XmlFunction(const AnswerFormat::Tool& tool);
  // An error where a call's XML cannot say what the schema does.
  static Status CheckXml(const AnswerFormat::Tool& tool, const JsonValue& parameters);
  static tl::unexpected<Error> NotInXml(const AnswerFormat::Tool& tool, std::string_view path);
  Result<ExpressionId> XmlValue(const AnswerFormat::Tool& tool, const JsonValue& schema,
                                std::string_view property);
  Result<ExpressionId> Arguments(const AnswerFormat::Tool& tool);
  // A choice of what `write` makes of each tool.
  template <typename Write>
  Result<ExpressionId> OfEachTool(Write write);

  ExpressionId Several(ExpressionId first, ExpressionId later) {
    return format_.parallel_calls
               ? source_.Sequence({first, source_.Repeat(later, 0, std::nullopt)})
               : first;
  }
  ExpressionId Literal(std::string_view text) { return source_.Literal(text); }
  ExpressionId Mark(std::string_view mark) {
    const auto spellings = SpellingsOf(mark);
    return source_.Choice({Literal(spellings[0]), Literal(spellings[1])});
  }
  ExpressionId Blanks() {
    return source_.Repeat(source_.Class({{U'\t', U'\n'}, {U'\r', U'\r'}, {U' ', U' '}}), 0,
                          kMaxBlanks);
  }
  SchemaStrictness StrictnessOf(const AnswerFormat::Tool& tool) const {
    return tool.is_strict ? SchemaStrictness::kStrict : SchemaStrictness::kLoose;
  }
  // An unsupported schema is only an error where a client relies on it.
  bool ReliesOn(const AnswerFormat::Tool& tool) const {
    return format_.must_call || tool.is_strict;
  }

  const AnswerFormat& format_;
  GrammarSource source_;
  JsonText json_{&source_};
  JsonTree tree_;
};

template <typename Write>
Result<ExpressionId> AnswerWriter::OfEachTool(Write write) {
  std::vector<ExpressionId> all;
  for (const AnswerFormat::Tool& tool : format_.tools) {
    KV_ASSIGN(all.emplace_back(), write(tool));
  }
  return source_.Choice(all);
}

Result<std::shared_ptr<const Grammar>> AnswerWriter::Compile(AnswerPart part,
                                                             size_t dropped_spaces) {
  const RuleId rule = source_.AddRule("answer");
  ExpressionId answer;
  if (part == AnswerPart::kWhole) {
    KV_ASSIGN(answer, Whole());
  } else {
    KV_ASSIGN(const ExpressionId body, Body());
    answer = source_.Sequence({Mark(format_.think->close), Blanks(), body});
  }
  source_.Define(rule, answer);
  KV_ASSIGN(auto grammar, Grammar::Compile(source_, rule));
  if (grammar->only_ends(grammar->start())) {
    return Fail(Code::kInvalidArgument, "it has no text but the empty one");
  }
  if (dropped_spaces == 0 || part != AnswerPart::kWhole || !IsStrict(format_)) return grammar;
  // The text lacks the first spaces. An answer that could begin with one more begins with these.
  const ExpressionId spaced =
      source_.Sequence({Literal(std::string(dropped_spaces, ' ')), source_.Call(rule)});
  const RuleId root = source_.AddRule("whole");
  const bool may_begin_with_space = Has(grammar->first(grammar->start()), ' ');
  source_.Define(root,
                 may_begin_with_space ? spaced : source_.Choice({spaced, source_.Call(rule)}));
  return Grammar::Compile(source_, root);
}

Result<ExpressionId> AnswerWriter::Whole() {
  if (!format_.think) return Body();
  KV_ASSIGN(const ExpressionId body, Body());
  const auto close = SpellingsOf(format_.think->close);
  ExpressionId inside = source_.Sequence({source_.Until(close), Blanks(), body});
  if (!IsStrict(format_)) inside = source_.Choice({inside, source_.Without(close)});
  if (format_.begins_inside_thought) return inside;
  return source_.Choice({source_.Sequence({Blanks(), Mark(format_.think->open), inside}), body});
}

Result<ExpressionId> AnswerWriter::Body() {
  if (format_.text) {
    KV_ASSIGN(const ExpressionId text,
              AddGrammarText(format_.text->language, format_.text->text, &json_));
    if (format_.tools.empty()) return text;
    KV_ASSIGN(const ExpressionId calls, Calls());
    return format_.must_call ? calls : source_.Choice({text, calls});
  }
  if (format_.tools.empty()) return source_.Without({});
  return format_.must_call ? Calls() : FreeTextWithCalls();
}

Result<ExpressionId> AnswerWriter::FreeTextWithCalls() {
  if (format_.calls->open.empty()) return source_.Without({});
  const auto open = SpellingsOf(format_.calls->open);
  KV_ASSIGN(const ExpressionId opened, Opened());
  const std::optional<uint32_t> most =
      format_.parallel_calls ? std::nullopt : std::optional<uint32_t>(1);
  return source_.Sequence({source_.Repeat(source_.Sequence({source_.Until(open), opened}), 0, most),
                           source_.Without(open)});
}

Result<ExpressionId> AnswerWriter::Calls() {
  const CallFormat& calls = *format_.calls;
  if (calls.bare) {
    KV_ASSIGN(const ExpressionId object, Object());
    const std::string_view between = calls.open.empty() ? "\n" : ";";
    return Several(object, source_.Sequence({Literal(between), json_.Space(), object}));
  }
  KV_ASSIGN(const ExpressionId opened, Opened());
  const ExpressionId call = source_.Sequence({Mark(calls.open), opened});
  return Several(call, source_.Sequence({Blanks(), call}));
}

Result<ExpressionId> AnswerWriter::Opened() {
  switch (format_.calls->body) {
    case CallBody::kJson:
      return OpenedJson();
    case CallBody::kNamed:
      return OpenedNamed();
    case CallBody::kDeepSeek:
      return OpenedDeepSeek();
    case CallBody::kXml:
      return OpenedXml();
  }
  return source_.Choice({});
}

Result<ExpressionId> AnswerWriter::OpenedJson() {
  const std::string_view end = format_.calls->ends[0];
  if (end.empty() && !format_.calls->bare) {
    KV_ASSIGN(const ExpressionId list, List());
    return source_.Sequence({json_.Space(), list});
  }
  KV_ASSIGN(const ExpressionId object, Object());
  if (end.empty()) return source_.Sequence({json_.Space(), object});
  return source_.Sequence({json_.Space(), object, json_.Space(), Mark(end)});
}

Result<ExpressionId> AnswerWriter::OpenedNamed() {
  KV_ASSIGN(const ExpressionId list, List());
  KV_ASSIGN(
      const ExpressionId named,
      OfEachTool([&](const AnswerFormat::Tool& tool) -> Result<ExpressionId> {
        KV_ASSIGN(const ExpressionId arguments, Arguments(tool));
        return source_.Sequence({Literal(tool.name), Mark(kArgsMark), json_.Space(), arguments});
      }));
  return source_.Sequence({json_.Space(), source_.Choice({list, named})});
}

Result<ExpressionId> AnswerWriter::OpenedDeepSeek() {
  KV_ASSIGN(const ExpressionId call,
            OfEachTool([&](const AnswerFormat::Tool& tool) -> Result<ExpressionId> {
              KV_ASSIGN(const ExpressionId arguments, Arguments(tool));
              const ExpressionId separator = Mark(kDeepSeekSeparator);
              return source_.Choice(
                  {source_.Sequence({Literal(tool.name), separator, arguments}),
                   source_.Sequence({Literal("function"), separator, Literal(tool.name),
                                     Literal("\n```json\n"), arguments, Literal("\n```")})});
            }));
  const auto& ends = format_.calls->ends;
  const ExpressionId whole =
      source_.Sequence({Blanks(), Mark(format_.calls->next), call, Mark(ends[1])});
  return source_.Sequence({Several(whole, whole), Blanks(), Mark(ends[2])});
}

Result<ExpressionId> AnswerWriter::OpenedXml() {
  KV_ASSIGN(const ExpressionId function,
            OfEachTool([&](const AnswerFormat::Tool& tool) { return XmlFunction(tool); }));
  return source_.Sequence({Blanks(), function, Blanks(), Mark(format_.calls->ends[0])});
}

Result<ExpressionId> AnswerWriter::Object() {
  const ExpressionId key = source_.Choice({Literal("\"arguments\":"), Literal("\"parameters\":")});
  return OfEachTool([&](const AnswerFormat::Tool& tool) -> Result<ExpressionId> {
    KV_ASSIGN(const ExpressionId arguments, Arguments(tool));
    return source_.Sequence({Literal("{"), json_.Space(), Literal("\"name\":"), json_.Space(),
                             Literal(Quoted(tool.name)), Literal(","), json_.Space(), key,
                             json_.Space(), arguments, json_.Space(), Literal("}")});
  });
}

Result<ExpressionId> AnswerWriter::List() {
  KV_ASSIGN(const ExpressionId object, Object());
  const ExpressionId later = source_.Sequence({Literal(","), json_.Space(), object});
  return source_.Sequence(
      {Literal("["), json_.Space(), Several(object, later), json_.Space(), Literal("]")});
}

Result<ExpressionId> AnswerWriter::Arguments(const AnswerFormat::Tool& tool) {
  if (tool.parameters.empty()) return json_.AnyObject();
  const auto parsed = tree_.Parse(tool.parameters);
  if (!parsed || !parsed->is_object()) {
    return Fail(Code::kInvalidArgument, "tool '{}': parameters is not an object", tool.name);
  }
  // Arguments are objects, also where the schema does not say so.
  JsonValue schema = *parsed;
  if (!schema.Find("type")) {
    std::vector<JsonValue::Member> members(schema.members().begin(), schema.members().end());
    const bool is_plain = std::ranges::none_of(members, [](const auto& member) {
      return member.key == "$ref" || member.key == "anyOf" || member.key == "oneOf" ||
             member.key == "allOf" || member.key == "enum" || member.key == "const";
    });
    members.push_back({"type", tree_.String("object")});
    if (is_plain) schema = tree_.Object(std::move(members));
  }
  auto arguments = AddJsonSchema(schema, StrictnessOf(tool), &json_);
  if (arguments) return arguments;
  if (!ReliesOn(tool)) return json_.AnyObject();
  return Fail(Code::kInvalidArgument, "tool '{}': parameters: {}", tool.name,
              arguments.error().message);
}

Result<ExpressionId> AnswerWriter::XmlFunction(const AnswerFormat::Tool& tool) {
  std::vector<ExpressionId> parts = {Literal("<function=" + tool.name + ">"), Blanks()};
  const auto parsed = tree_.Parse(tool.parameters.empty() ? "{}" : tool.parameters);
  if (!parsed || !parsed->is_object()) {
    return Fail(Code::kInvalidArgument, "tool '{}': parameters is not an object", tool.name);
  }
  if (ReliesOn(tool)) KV_TRY(CheckXml(tool, *parsed));
  const JsonValue* properties = parsed->Find("properties");
  const JsonValue* required = parsed->Find("required");
  const auto is_required = [&](std::string_view key) {
    return required && required->is_array() &&
           std::ranges::any_of(required->items(), [&](const JsonValue& name) {
             return name.is_string() && name.text() == key;
           });
  };
  if (properties && properties->is_object()) {
    for (const auto& [key, unused] : properties->members()) {
      KV_ASSIGN(const ExpressionId value, XmlValue(tool, *parsed, key));
      const ExpressionId parameter =
          source_.Sequence({Literal("<parameter=" + std::string(key) + ">"), value, Blanks()});
      parts.push_back(is_required(key) ? parameter : source_.Optional(parameter));
    }
  }
  parts.push_back(Literal("</function>"));
  return source_.Sequence(parts);
}

tl::unexpected<Error> AnswerWriter::NotInXml(const AnswerFormat::Tool& tool,
                                             std::string_view path) {
  return Fail(Code::kInvalidArgument,
              "tool '{}': parameters: at '#{}': not supported with this model's calls, whose texts "
              "stand without quotes",
              tool.name, path);
}

Status AnswerWriter::CheckXml(const AnswerFormat::Tool& tool, const JsonValue& parameters) {
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

// With the mark that ends it.
Result<ExpressionId> AnswerWriter::XmlValue(const AnswerFormat::Tool& tool, const JsonValue& schema,
                                            std::string_view property) {
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
      if (own.Find(key) && ReliesOn(tool)) {
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
    if (ReliesOn(tool)) return NotInXml(tool, "/properties/" + std::string(property));
    const std::string ends[] = {end};
    return source_.Until(ends);
  }
  auto value = AddJsonSchema(schema, StrictnessOf(tool), &json_, property);
  if (!value && ReliesOn(tool)) {
    return Fail(Code::kInvalidArgument, "tool '{}': parameters: {}", tool.name,
                value.error().message);
  }
  return source_.Sequence({Blanks(), value ? *value : json_.AnyValue(), Blanks(), Literal(end)});
}

}  // namespace

std::vector<std::string> GrammarTexts(const Tokenizer& tokenizer, const TokenBytes& bytes,
                                      const std::vector<TokenId>& ends) {
  std::vector<std::string> texts = bytes.of;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (!tokenizer.IsSpecial(id)) {
      // Bytes that UTF-8 does not have either.
      std::ranges::replace(texts[i], kHiddenToken, '\xFD');
      std::ranges::replace(texts[i], kMark, '\xFD');
      continue;
    }
    const auto mark = std::ranges::find(AllMarks(), tokenizer.TokenText(id));
    texts[i] = mark == AllMarks().end()
                   ? std::string(1, kHiddenToken)
                   : std::string{kMark, static_cast<char>(mark - AllMarks().begin())};
  }
  for (const TokenId end : ends) {
    if (static_cast<size_t>(end) < texts.size()) texts[static_cast<size_t>(end)].clear();
  }
  return texts;
}

std::optional<std::string_view> MarkOf(std::string_view grammar_text) {
  if (grammar_text.size() != 2 || grammar_text[0] != kMark) return std::nullopt;
  return AllMarks()[static_cast<uint8_t>(grammar_text[1])];
}

bool HasGrammar(const AnswerFormat& format) {
  return format.text ||
         (!format.tools.empty() && (format.must_call || !format.calls->open.empty()));
}

Digest DigestOf(const AnswerFormat& format, AnswerPart part, size_t dropped_spaces) {
  Sha256 sha;
  const auto add = [&](std::string_view text) { sha.UpdateU64(text.size()).Update(text); };
  sha.UpdateU64(static_cast<uint64_t>(part)).UpdateU64(dropped_spaces);
  sha.UpdateU64(format.text ? 1 + static_cast<uint64_t>(format.text->language) : 0);
  add(format.text ? format.text->text : "");
  sha.UpdateU64(format.tools.size());
  for (const AnswerFormat::Tool& tool : format.tools) {
    add(tool.name);
    add(tool.parameters);
    sha.UpdateU64(tool.is_strict);
  }
  add(format.calls ? format.calls->name : "");
  add(format.think ? format.think->open : "");
  add(format.think ? format.think->close : "");
  sha.UpdateU64(format.must_call).UpdateU64(format.parallel_calls);
  return sha.UpdateU64(format.begins_inside_thought).Finish();
}

Result<std::shared_ptr<const Grammar>> CompileAnswer(const AnswerFormat& format, AnswerPart part,
                                                     size_t dropped_spaces) {
  auto grammar = AnswerWriter(format).Compile(part, dropped_spaces);
  if (!grammar && !grammar.error().field) {
    grammar.error().field = format.text ? format.text->field : "tools";
  }
  return grammar;
}

}  // namespace kvasir
