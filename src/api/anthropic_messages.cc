#include "api/anthropic_messages.h"

#include <fmt/format.h>

#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/anthropic_blocks.h"
#include "api/anthropic_writer.h"
#include "base/result.h"

namespace kvasir {
namespace {

using Member = JsonValue::Member;

constexpr ChatNames::Field kOtherNames[] = {
    {"stop", "stop_sequences"},
    {"response_format.json_schema.schema", "output_config.format.schema"},
    {"max_reasoning_tokens", "thinking.budget_tokens"},
};

// Makes the chat's object of the body's fields.
class AnthropicReader {
 public:
  AnthropicReader(const JsonValue& body, const ModelView& model, AnthropicChat* made)
      : fields_(body), model_(model), made_(*made), tree_(made->chat.tree) {}

  Status Read(ReadFor purpose);

 private:
  void Put(std::string_view key, const JsonValue& value) { members_.push_back({key, value}); }
  Status ReadTools();
  Result<JsonValue> ToolOf(const JsonValue& tool, const std::string& path);
  void ReadToolChoice();
  void ReadThinking();
  void ReadOutput();
  void ReadDiagnostics();

  JsonFields fields_;
  const ModelView& model_;
  AnthropicChat& made_;
  JsonTree& tree_;
  std::vector<Member> members_;  // of the chat completion
  std::vector<Member> variables_;
  std::string tool_mark_;  // tools stand in the first message
};

Status AnthropicReader::Read(ReadFor purpose) {
  if (fields_.Find("thread")) {
    return FailField(Code::kUnsupported, std::string(kThreadField),
                     "no conversation is stored: send all of its messages, without this field");
  }
  KV_TRY(ReadTools());
  const bool has_tools = !members_.empty();
  KV_ASSIGN(const TemplateForm form, FormFor(fields_, model_, has_tools));
  AnthropicBlocks blocks(form, &tree_, &fields_);
  if (const JsonValue* system = fields_.Find("system")) KV_TRY(blocks.ReadSystem(*system));
  KV_TRY(blocks.ReadMessages(fields_.Find("messages")));
  KV_ASSIGN(const std::string mark, ReadMark(fields_));
  if (!tool_mark_.empty()) blocks.Mark(0, tool_mark_);
  if (!mark.empty()) blocks.Mark(blocks.num_messages() - 1, mark);
  Put("messages", blocks.End(&made_.chat.names));
  CopyFields(fields_, kSameFields, &members_);
  CopyFields(fields_, kOwnFields, &members_);
  uint32_t most = 0;
  fields_.Unsigned("max_tokens", 0, UINT32_MAX, &most);
  if (fields_.Has("max_tokens")) {
    Put("max_tokens", JsonValue(int64_t{most}));
  } else if (purpose == ReadFor::kAnswer) {
    fields_.Fail("max_tokens", "is missing; give the most tokens that the answer may have");
  }
  if (const JsonValue* stop = fields_.Find("stop_sequences")) Put("stop", *stop);
  ReadToolChoice();
  ReadThinking();
  ReadOutput();
  ReadDiagnostics();
  fields_.Find("metadata");  // the tenant comes from the credential, never from here
  if (fields_.error()) return tl::unexpected(*fields_.error());
  if (!variables_.empty()) Put("chat_template_kwargs", tree_.Object(std::move(variables_)));
  made_.chat.fields = tree_.Object(std::move(members_));
  auto& names = made_.chat.names.fields;
  names.insert(names.end(), std::begin(kOtherNames), std::end(kOtherNames));
  made_.chat.ignored = fields_.Unread();
  return {};
}

// Reads tools. Those that have no schema run at Anthropic's servers: they are left out.
Status AnthropicReader::ReadTools() {
  KV_ASSIGN(const std::span<const JsonValue> tools, ToolsOf(fields_));
  std::vector<JsonValue> made;
  for (size_t i = 0; i < tools.size(); ++i) {
    const JsonValue& tool = tools[i];
    const std::string path = fmt::format("tools[{}]", i);
    const JsonValue* schema = tool.Find("input_schema");
    if (schema && !schema->is_null()) {
      KV_ASSIGN(made.emplace_back(), ToolOf(tool, path));
    } else if (tool.is_object() && tool.Find("type")) {
      fields_.TakeUnread(std::span(&path, 1));
    } else {
      return FailField(Code::kInvalidArgument, path + ".input_schema",
                       "is missing, where the schema of the tool's input must be");
    }
  }
  if (!made.empty()) Put("tools", tree_.Array(made));
  return {};
}

Result<JsonValue> AnthropicReader::ToolOf(const JsonValue& tool, const std::string& path) {
  JsonFields fields(tool, path + ".");
  fields.Find("type");
  KV_ASSIGN(const JsonValue function, ReadFunction(fields, "input_schema", &tree_));
  KV_ASSIGN(std::string mark, ReadMark(fields));
  if (!mark.empty()) tool_mark_ = std::move(mark);
  fields_.TakeUnread(fields);
  return function;
}

void AnthropicReader::ReadToolChoice() {
  const JsonValue* choice = fields_.Find("tool_choice");
  if (!choice) return;
  JsonFields inner(*choice, "tool_choice.");
  std::string_view type, name;
  inner.Text("type", &type);
  inner.Text("name", &name);
  bool one_call = false;
  inner.Bool("disable_parallel_tool_use", &one_call);
  if (one_call) Put("parallel_tool_calls", JsonValue(false));
  if (type == "auto" || type == "none") {
    Put("tool_choice", tree_.String(type));
  } else if (type == "any") {
    Put("tool_choice", tree_.String("required"));
  } else if (type == "tool" && !name.empty()) {
    Put("tool_choice", tree_.Object({{"type", tree_.String("function")},
                                     {"function", tree_.Object({{"name", tree_.String(name)}})}}));
  } else if (type == "tool") {
    inner.Fail("name", "is missing, where the name of a tool must be");
  } else {
    inner.Refuse("type", R"("auto", "any", "tool" or "none")");
  }
  if (inner.error()) return fields_.Fail(*inner.error());
  fields_.TakeUnread(inner);
}

// Says whether the template has the model think. Without marks of thoughts a budget says nothing.
void AnthropicReader::ReadThinking() {
  if (const JsonValue* given = fields_.Find("chat_template_kwargs")) {
    if (!given->is_object()) return fields_.Refuse("chat_template_kwargs", "an object");
    variables_.assign(given->members().begin(), given->members().end());
  }
  const JsonValue* thinking = fields_.Find("thinking");
  if (!thinking) return;
  JsonFields inner(*thinking, "thinking.");
  std::string_view type;
  inner.Text("type", &type);
  const bool is_on = type == "enabled";
  if (is_on || type == "disabled") {
    variables_.push_back({"enable_thinking", JsonValue(is_on)});
    made_.chat.names.fields.push_back({"chat_template_kwargs.enable_thinking", "thinking.type"});
  } else if (type != "adaptive" && type != "between_tools") {
    inner.Refuse("type", R"("enabled", "disabled", "adaptive" or "between_tools")");
  }
  if (is_on && model_.think) {
    const auto budget = inner.Integer("budget_tokens", 0, UINT32_MAX);
    if (budget) Put("max_reasoning_tokens", JsonValue(*budget));
  }
  if (inner.error()) return fields_.Fail(*inner.error());
  fields_.TakeUnread(inner);
}

void AnthropicReader::ReadOutput() {
  const JsonValue* output = fields_.Find("output_config");
  if (!output) return;
  JsonFields inner(*output, "output_config.");
  if (const JsonValue* format = inner.Find("format")) {
    JsonFields form(*format, "output_config.format.");
    std::string_view type;
    form.Text("type", &type);
    const JsonValue* schema = form.Find("schema");
    if (type != "json_schema") form.Refuse("type", R"("json_schema")");
    if (!schema || !schema->is_object()) form.Fail("schema", "must be a JSON Schema");
    if (form.error()) return fields_.Fail(*form.error());
    fields_.TakeUnread(form);
    Put("response_format", tree_.Object({{"type", tree_.String("json_schema")},
                                         {"json_schema", tree_.Object({{"schema", *schema}})}}));
  }
  if (!output->is_object()) fields_.Refuse("output_config", "an object");
  fields_.TakeUnread(inner);
}

// Reads the message to compare with. Without an id the client only says that it will ask about this
// message.
void AnthropicReader::ReadDiagnostics() {
  const JsonValue* diagnostics = fields_.Find("diagnostics");
  if (!diagnostics) return;
  if (!diagnostics->is_object()) return fields_.Refuse("diagnostics", "an object");
  JsonFields inner(*diagnostics, "diagnostics.");
  std::string_view id;
  inner.Text("previous_message_id", &id);
  if (inner.error()) return fields_.Fail(*inner.error());
  if (inner.Has("previous_message_id")) {
    Put("prompt_cache_options", tree_.Object({{"comparison_response_id", tree_.String(id)}}));
  }
  fields_.TakeUnread(inner);
}

}  // namespace

Result<AnthropicChat> TranslateMessages(std::string_view body, const ModelView& model,
                                        ReadFor purpose) {
  KV_ASSIGN(JsonBody parsed, ParseBody(body));
  AnthropicChat made;
  made.chat.tree = std::move(parsed.tree);
  KV_TRY(AnthropicReader(parsed.fields, model, &made).Read(purpose));
  return made;
}

}  // namespace kvasir
