#include "chat/answer_grammar.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/json_tree.h"
#include "base/json_writer.h"
#include "base/result.h"
#include "chat/answer_format.h"
#include "chat/call_grammar.h"
#include "chat/xml_call_grammar.h"
#include "grammar/grammar_text.h"
#include "grammar/json_schema.h"

namespace kvasir {
namespace {

// Returns what a mark is read as: its text, and the special token of that text.
std::vector<std::string> SpellingsOf(std::string_view mark) {
  const auto& all = AllMarks();
  const auto number = static_cast<char>(std::ranges::find(all, mark) - all.begin());
  return {std::string(mark), {kMark, number}};
}

// Returns whether the answer must come to an end that the format has.
bool IsStrict(const AnswerFormat& format) { return format.text || format.must_call; }

class AnswerGrammar {
 public:
  explicit AnswerGrammar(const AnswerFormat& format) : format_(format) {}

  Result<std::shared_ptr<const Grammar>> Compile(AnswerPart part, size_t dropped_spaces);

 private:
  Result<ExpressionId> Whole();
  // Adds what follows a thought.
  Result<ExpressionId> Body();
  Result<ExpressionId> FreeTextWithCalls();
  Result<ExpressionId> Calls();
  // Adds what follows CallFormat::open, up to the end of what it opened.
  Result<ExpressionId> Opened();
  Result<ExpressionId> OpenedJson();
  Result<ExpressionId> OpenedNamed();
  Result<ExpressionId> OpenedDeepSeek();
  Result<ExpressionId> OpenedXml();
  // Adds {"name", "arguments"} of any tool, and a JSON list of such.
  Result<ExpressionId> Object();
  Result<ExpressionId> List();
  Result<ExpressionId> Arguments(const AnswerFormat::Tool& tool);
  // Adds a choice of what `write` makes of each tool.
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
  // Adds white space next to a mark.
  ExpressionId Blanks() { return MarkBlanks(source_); }

  const AnswerFormat& format_;
  GrammarSource source_;
  JsonText json_{&source_};
  XmlCallGrammar xml_{format_, json_};
  JsonTree tree_;
};

template <typename Write>
Result<ExpressionId> AnswerGrammar::OfEachTool(Write write) {
  std::vector<ExpressionId> all;
  for (const AnswerFormat::Tool& tool : format_.tools) {
    KV_ASSIGN(all.emplace_back(), write(tool));
    KV_TRY(source_.CheckSize());
  }
  return source_.Choice(all);
}

Result<std::shared_ptr<const Grammar>> AnswerGrammar::Compile(AnswerPart part,
                                                              size_t dropped_spaces) {
  const RuleId rule = source_.AddRule("answer");
  ExpressionId answer;
  if (part == AnswerPart::kWhole) {
    KV_ASSIGN(answer, Whole());
  } else {
    KV_ASSIGN(const ExpressionId body, Body());
    answer = source_.Sequence({Mark(format_.think->close), Blanks(), body});
  }
  KV_TRY(source_.CheckSize());
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
  KV_TRY(source_.CheckSize());
  return Grammar::Compile(source_, root);
}

Result<ExpressionId> AnswerGrammar::Whole() {
  if (!format_.think) return Body();
  KV_ASSIGN(const ExpressionId body, Body());
  const auto close = SpellingsOf(format_.think->close);
  ExpressionId inside = source_.Sequence({source_.Until(close), Blanks(), body});
  if (!IsStrict(format_)) inside = source_.Choice({inside, source_.Without(close)});
  if (format_.begins_inside_thought) return inside;
  return source_.Choice({source_.Sequence({Blanks(), Mark(format_.think->open), inside}), body});
}

Result<ExpressionId> AnswerGrammar::Body() {
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

Result<ExpressionId> AnswerGrammar::FreeTextWithCalls() {
  if (format_.calls->open.empty()) return source_.Without({});
  const auto open = SpellingsOf(format_.calls->open);
  KV_ASSIGN(const ExpressionId opened, Opened());
  const std::optional<uint32_t> most =
      format_.parallel_calls ? std::nullopt : std::optional<uint32_t>(1);
  return source_.Sequence({source_.Repeat(source_.Sequence({source_.Until(open), opened}), 0, most),
                           source_.Without(open)});
}

Result<ExpressionId> AnswerGrammar::Calls() {
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

Result<ExpressionId> AnswerGrammar::Opened() {
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

Result<ExpressionId> AnswerGrammar::OpenedJson() {
  const std::string_view end = format_.calls->ends[0];
  if (end.empty() && !format_.calls->bare) {
    KV_ASSIGN(const ExpressionId list, List());
    return source_.Sequence({json_.Space(), list});
  }
  KV_ASSIGN(const ExpressionId object, Object());
  if (end.empty()) return source_.Sequence({json_.Space(), object});
  return source_.Sequence({json_.Space(), object, json_.Space(), Mark(end)});
}

Result<ExpressionId> AnswerGrammar::OpenedNamed() {
  KV_ASSIGN(const ExpressionId list, List());
  KV_ASSIGN(
      const ExpressionId named,
      OfEachTool([&](const AnswerFormat::Tool& tool) -> Result<ExpressionId> {
        KV_ASSIGN(const ExpressionId arguments, Arguments(tool));
        return source_.Sequence({Literal(tool.name), Mark(kArgsMark), json_.Space(), arguments});
      }));
  return source_.Sequence({json_.Space(), source_.Choice({list, named})});
}

Result<ExpressionId> AnswerGrammar::OpenedDeepSeek() {
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

Result<ExpressionId> AnswerGrammar::OpenedXml() {
  KV_ASSIGN(const ExpressionId function,
            OfEachTool([&](const AnswerFormat::Tool& tool) { return xml_.Function(tool); }));
  return source_.Sequence({Blanks(), function, Blanks(), Mark(format_.calls->ends[0])});
}

Result<ExpressionId> AnswerGrammar::Object() {
  const ExpressionId key = source_.Choice({Literal("\"arguments\":"), Literal("\"parameters\":")});
  return OfEachTool([&](const AnswerFormat::Tool& tool) -> Result<ExpressionId> {
    KV_ASSIGN(const ExpressionId arguments, Arguments(tool));
    return source_.Sequence({Literal("{"), json_.Space(), Literal("\"name\":"), json_.Space(),
                             Literal(Quoted(tool.name)), Literal(","), json_.Space(), key,
                             json_.Space(), arguments, json_.Space(), Literal("}")});
  });
}

Result<ExpressionId> AnswerGrammar::List() {
  KV_ASSIGN(const ExpressionId object, Object());
  const ExpressionId later = source_.Sequence({Literal(","), json_.Space(), object});
  return source_.Sequence(
      {Literal("["), json_.Space(), Several(object, later), json_.Space(), Literal("]")});
}

Result<ExpressionId> AnswerGrammar::Arguments(const AnswerFormat::Tool& tool) {
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
  if (!ReliesOnSchema(format_, tool)) return json_.AnyObject();
  return Fail(Code::kInvalidArgument, "tool '{}': parameters: {}", tool.name,
              arguments.error().message);
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
  auto grammar = AnswerGrammar(format).Compile(part, dropped_spaces);
  if (!grammar && !grammar.error().field) {
    grammar.error().field = format.text ? format.text->field : "tools";
  }
  return grammar;
}

}  // namespace kvasir
