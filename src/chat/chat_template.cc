#include "chat/chat_template.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "base/clock.h"
#include "base/result.h"
#include "jinja/builtins.h"
#include "jinja/input.h"
#include "jinja/interpreter.h"
#include "jinja/lexer.h"
#include "jinja/parser.h"

namespace kvasir {
namespace {

using jinja::Text;
using jinja::Value;

const std::vector<const char*> kProbes[] = {{"user", "assistant", "user"},
                                            {"system", "user", "assistant", "user"},
                                            {"developer", "user"},
                                            {"user", "assistant", "tool", "assistant", "user"}};

const ChatRenderOptions kProbeOptions = {
    .bos_token = "x", .eos_token = "x", .now_unix_s = 1, .max_steps = kTriedSteps};

std::vector<std::pair<size_t, size_t>> LiteralRanges(const Text& text) {
  std::vector<std::pair<size_t, size_t>> out;
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    if (run.origin.input && !out.empty() && out.back().second == begin) {
      out.back().second = run.end;
    } else if (run.origin.input) {
      out.emplace_back(begin, run.end);
    }
    begin = run.end;
  }
  return out;
}

// Returns where each message ends, by the rule at ChatTemplate. O(runs + messages).
std::vector<size_t> MessageEnds(const Text& text, size_t num_messages) {
  std::vector<size_t> first_literal_end(num_messages, 0);
  size_t end_of_messages = 0;
  for (const Text::Run& run : text.runs()) {
    if (!run.origin.message || *run.origin.message >= num_messages) continue;
    size_t& end = first_literal_end[*run.origin.message];
    if (run.origin.input && end == 0) end = run.end;
    end_of_messages = run.end;
  }
  std::vector<size_t> ends;
  size_t at = 0, next_run = 0, run_begin = 0;
  for (size_t i = 0; i + 1 < num_messages; ++i) {
    at = std::max(at, first_literal_end[i]);
    // Runs that end before `at`, or belong to no message after i, are not where message i+1 begins.
    while (next_run < text.runs().size()) {
      const Text::Run& run = text.runs()[next_run];
      if (run.end > at && run.origin.message && *run.origin.message > i) break;
      run_begin = run.end;
      ++next_run;
    }
    const bool found = next_run < text.runs().size();
    at = found ? std::max(at, run_begin) : std::max(at, end_of_messages);
    ends.push_back(at);
  }
  if (num_messages > 0) ends.push_back(std::max(at, end_of_messages));
  return ends;
}

// Returns where each message begins at the earliest, given where they end. O(runs + messages).
std::vector<size_t> MessageBegins(const Text& text, std::span<const size_t> ends) {
  std::vector<size_t> begins(ends.size(), 0);
  for (size_t i = 1; i < ends.size(); ++i) begins[i] = ends[i - 1];
  size_t run_begin = 0;
  for (const Text::Run& run : text.runs()) {
    if (run.origin.input && run.origin.message && *run.origin.message < begins.size()) {
      size_t& begin = begins[*run.origin.message];
      begin = std::min(begin, run_begin);
    }
    run_begin = run.end;
  }
  for (size_t i = begins.size(); i-- > 1;) begins[i - 1] = std::min(begins[i - 1], begins[i]);
  return begins;
}

// Returns the parts that no byte of the text comes from.
std::vector<jinja::ChatPart> Unseen(const Text& text, std::span<const jinja::ChatPart> parts) {
  std::vector<bool> is_seen(parts.size() + 1, false);  // by number
  for (const Text::Run& run : text.runs()) {
    if (run.origin.input) is_seen[run.origin.part] = true;
  }
  std::vector<jinja::ChatPart> unseen;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!is_seen[i + 1]) unseen.push_back(parts[i]);
  }
  return unseen;
}

// Adds the variables that the template did not read, and those that the chat itself replaces.
void AddUnread(const JsonValue& variables, const jinja::Interpreter& interpreter,
               std::vector<jinja::ChatPart>* unseen) {
  constexpr std::string_view kOfTheChat[] = {"messages", "tools", "add_generation_prompt"};
  for (const auto& [name, value] : variables.members()) {
    const bool is_replaced = std::ranges::find(kOfTheChat, name) != std::end(kOfTheChat);
    if (!is_replaced && interpreter.has_read(name)) continue;
    unseen->push_back({.kind = jinja::ChatPart::Kind::kVariable, .member = std::string(name)});
  }
}

// As transformers marks the end of a text that is continued. The space shows whether the template
// trims the text.
constexpr std::string_view kEndMark = "CONTINUE_FINAL_MESSAGE_TAG ";

std::string_view FieldOf(Continued continued) {
  return continued == Continued::kContent ? "content" : "reasoning_content";
}

// Returns the messages with a mark after the text that is continued, which is *said.
Result<JsonValue> MarkEnd(const JsonValue& messages, Continued continued, std::string_view* said,
                          JsonTree* tree) {
  const std::string_view field = FieldOf(continued);
  const JsonValue* text = messages.size() > 0 ? messages.items().back().Find(field) : nullptr;
  if (!text || !text->is_string()) {
    return FailField(Code::kInvalidArgument, "messages", "the last message has no {} to continue",
                     field);
  }
  *said = text->text();
  const auto members = messages.items().back().members();
  std::vector<JsonValue::Member> marked(members.begin(), members.end());
  marked.push_back({field, tree->String(std::string(*said).append(kEndMark))});
  std::vector<JsonValue> items(messages.items().begin(), messages.items().end());
  items.back() = tree->Object(std::move(marked));
  return tree->Array(items);
}

// Ends the chat where the mark is.
Status CutAtMark(std::string_view said, RenderedChat* chat) {
  std::string_view text = chat->text;
  const std::string trimmed = jinja::Strip(Text(said), jinja::Side::kBoth, nullptr).bytes();
  const size_t mark = text.rfind(kEndMark.substr(0, kEndMark.size() - 1));
  if (mark == text.npos || text.find(trimmed) == text.npos) {
    return FailField(Code::kInvalidArgument, "messages",
                     "the chat template does not write the last message as it is, so it cannot be "
                     "continued (continue_final_message: false asks for a new one)");
  }
  size_t end = mark;
  if (!text.substr(mark).starts_with(kEndMark)) {
    end = jinja::Strip(Text(text.substr(0, mark)), jinja::Side::kRight, nullptr).size();
  }
  chat->text.resize(end);
  for (auto& [literal_begin, literal_end] : chat->literal) literal_end = std::min(literal_end, end);
  std::erase_if(chat->literal, [&](const auto& range) { return range.first >= range.second; });
  for (size_t& message_end : chat->message_end) message_end = std::min(message_end, end);
  for (size_t& message_begin : chat->message_begin) message_begin = std::min(message_begin, end);
  if (!chat->message_end.empty()) chat->message_end.back() = end;
  chat->is_continued = true;
  return {};
}

bool BeginsWithSystem(const JsonValue& messages) {
  const JsonValue* role = messages.size() == 0 ? nullptr : messages.items()[0].Find("role");
  return role != nullptr && role->is_string() &&
         (role->text() == "system" || role->text() == "developer");
}

using NamedTemplates = std::map<std::string, std::unique_ptr<ChatTemplate>>;

class JinjaChatTemplate final : public ChatTemplate {
 public:
  JinjaChatTemplate(std::string source, std::vector<jinja::NodePtr> body, NamedTemplates named)
      : source_(std::move(source)), body_(std::move(body)), named_(std::move(named)) {
    form_ = FindTemplateForm(
        [this](const JsonValue& messages, const JsonValue& tools, jinja::ContentForm content) {
          return Render(messages, tools, {}, kProbeOptions, content);
        },
        source_);
    written_ = std::make_shared<const std::string>(source_ + Probe());
  }

  const ChatTemplate* Choose(const std::optional<std::string>& name,
                             bool has_tools) const override {
    const auto found = named_.find(name.value_or(has_tools ? "tool_use" : "default"));
    if (found != named_.end()) return found->second.get();
    return !name || name == "default" ? this : nullptr;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names = {"default"};
    for (const auto& [name, other] : named_) names.push_back(name);
    return names;
  }

  const std::string& source() const override { return source_; }
  const TemplateForm& form() const override { return form_; }

  Result<RenderedChat> Render(const JsonValue& messages, const JsonValue& tools,
                              const JsonValue& variables,
                              const ChatRenderOptions& options) const override {
    return Render(messages, tools, variables, options,
                  form_.content_parts ? jinja::ContentForm::kParts : jinja::ContentForm::kText);
  }

 private:
  Result<RenderedChat> Render(const JsonValue& messages, const JsonValue& tools,
                              const JsonValue& variables, const ChatRenderOptions& options,
                              jinja::ContentForm content) const {
    if (!messages.is_array()) return Fail(Code::kInvalidArgument, "messages must be an array");
    if (!variables.is_null() && !variables.is_object()) {
      return Fail(Code::kInvalidArgument, "chat template variables must be an object");
    }
    jinja::Variables names;
    if (variables.is_object()) {
      for (const auto& [key, value] : variables.members()) {
        KV_ASSIGN(names[std::string(key)], jinja::FromJson(value));
      }
    }
    // A caller's variables replace what the model has, never the chat itself.
    names.emplace("documents", Value(jinja::None{}));
    if (!options.bos_token.empty()) {
      names.emplace("bos_token", jinja::FromString(options.bos_token));
    }
    if (!options.eos_token.empty()) {
      names.emplace("eos_token", jinja::FromString(options.eos_token));
    }
    JsonTree tree;
    JsonValue rendered_from = messages;
    std::string_view said;
    if (options.continues) {
      KV_ASSIGN(rendered_from, MarkEnd(messages, *options.continues, &said, &tree));
    }
    std::vector<jinja::ChatPart> parts;
    if (tools.size() > 0) parts.emplace_back();
    const auto tools_part = static_cast<uint32_t>(parts.size());
    KV_ASSIGN(names["messages"], jinja::FromMessages(rendered_from, content, &parts));
    KV_ASSIGN(names["tools"],
              jinja::FromJson(tools, jinja::Origin{{}, /*input=*/true, tools_part}));
    names["add_generation_prompt"] = Value(options.add_generation_prompt && !options.continues);
    jinja::Limits limits = jinja::Limits::For(names);
    limits.steps = std::min(limits.steps, options.max_steps);
    jinja::Interpreter interpreter(source_, limits,
                                   options.now_unix_s ? options.now_unix_s : UnixS());
    KV_ASSIGN(Text text, interpreter.Run(body_, std::move(names)));
    RenderedChat chat;
    chat.literal = LiteralRanges(text);
    chat.message_end = MessageEnds(text, messages.size());
    chat.message_begin = MessageBegins(text, chat.message_end);
    chat.written = written_;
    chat.clock_in_prompt = interpreter.has_read_clock() && options.now_unix_s == 0;
    chat.unseen = Unseen(text, parts);
    AddUnread(variables, interpreter, &chat.unseen);
    chat.begins_with_system = BeginsWithSystem(messages);
    chat.text = std::move(text).TakeBytes();
    if (options.continues) KV_TRY(CutAtMark(said, &chat));
    return chat;
  }

  // Returns what the template itself writes in chats of each role: marks that it makes out of
  // roles, as '<|' + role + '|>', are not in its source. Chats that it refuses write nothing.
  std::string Probe() const {
    std::string written;
    for (const auto& roles : kProbes) {
      JsonTree tree;
      std::vector<JsonValue> messages;
      for (const char* role : roles) {
        messages.push_back(
            tree.Object({{"role", tree.String(role)}, {"content", tree.String("x")}}));
      }
      const auto chat = Render(tree.Array(messages), {}, {}, kProbeOptions);
      if (!chat) continue;
      size_t at = 0;
      for (const auto& [begin, end] : chat->literal) {
        written.append("\n").append(chat->text, at, begin - at);
        at = end;
      }
      written.append("\n").append(chat->text, at);
    }
    return written;
  }

  std::string source_;
  std::vector<jinja::NodePtr> body_;
  NamedTemplates named_;  // has no "default"
  std::shared_ptr<const std::string> written_;
  TemplateForm form_;
};

}  // namespace

Result<JsonValue> ParseVariables(std::string_view text, JsonTree* tree) {
  if (text.empty()) return JsonValue();
  const std::optional<JsonValue> value = tree->Parse(text);
  if (value && value->is_object()) return *value;
  return Fail(Code::kInvalidArgument,
              "is not a JSON object, such as {{\"enable_thinking\": false}}");
}

std::string AllSources(const ChatTemplate& chat_template) {
  std::string sources;
  for (const std::string& name : chat_template.names()) {
    sources += chat_template.Choose(name, /*has_tools=*/false)->source() + "\n";
  }
  return sources;
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(std::string_view source) {
  return Parse(source, {});
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(
    std::string_view source, const std::map<std::string, std::string>& named) {
  NamedTemplates others;
  for (const auto& [name, text] : named) {
    auto other = Parse(text);
    if (!other) return Fail(other.error().code, "template '{}': {}", name, other.error().message);
    others[name] = std::move(*other);
  }
  std::string normalized = jinja::NormalizeNewlines(source);
  KV_ASSIGN(std::vector<jinja::NodePtr> body, jinja::ParseTemplate(normalized));
  return std::make_unique<JinjaChatTemplate>(std::move(normalized), std::move(body),
                                             std::move(others));
}

}  // namespace kvasir
