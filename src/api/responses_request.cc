#include "api/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "api/responses_items.h"
#include "api/responses_writer.h"
#include "api/session_prompt.h"
#include "base/result.h"

namespace kvasir {
namespace {

// Fields that a chat completion has by the same name.
constexpr std::string_view kEqualFields[] = {"model",
                                             "stream",
                                             "temperature",
                                             "top_p",
                                             "top_k",
                                             "min_p",
                                             "seed",
                                             "repetition_penalty",
                                             "ignore_eos",
                                             "presence_penalty",
                                             "min_tokens",
                                             "frequency_penalty",
                                             "priority",
                                             "timeout_ms",
                                             "cache_salt",
                                             "cache_prompt",
                                             "cache",
                                             "lora",
                                             "speculative",
                                             "chat_template_name",
                                             "drop_lines",
                                             "move_lines",
                                             "id_slot",
                                             "speculative.n_max",
                                             "parallel_tool_calls"};

constexpr ChatNames::Field kItsNames[] = {
    {"messages", "input"},
    {"max_tokens", "max_output_tokens"},
    {"response_format.json_schema", "text.format"},
    {"max_reasoning_tokens", "reasoning"},
};

// Fields that name what this version does not have, or runs elsewhere.
constexpr std::string_view kRefused[] = {"background", "conversation", "prompt"};

struct ResponsesChat {
  TranslatedChat chat;
  ResponsesForm form;
  ResponseChain chain;
};

// Makes the chat's object of the body's fields.
class ResponsesReader {
 public:
  ResponsesReader(const JsonValue& body, const ModelView& model, const FindResponse& find,
                  ResponsesChat* made)
      : fields_(body), model_(model), find_(find), made_(*made), tree_(made->chat.tree) {}

  Status Read();

 private:
  void Put(std::string_view key, const JsonValue& value) { members_.push_back({key, value}); }
  Status Refuse();
  Status FindPrevious();
  void ReadTruncation();
  Status ReadTools();
  Result<JsonValue> ToolOf(const JsonValue& tool, const std::string& path);
  void ReadToolChoice();
  void ReadText();
  void ReadReasoning();
  void ReadInclude();

  JsonFields fields_;
  const ModelView& model_;
  const FindResponse& find_;
  ResponsesChat& made_;
  JsonTree& tree_;
  std::vector<JsonValue::Member> members_;  // of the chat completion
};

Status ResponsesReader::Read() {
  KV_TRY(Refuse());
  KV_TRY(FindPrevious());
  KV_TRY(ReadTools());
  const bool has_tools = !members_.empty();
  KV_ASSIGN(const TemplateForm form, FormFor(fields_, model_, has_tools));
  ResponsesItems items(form, model_, &tree_, &fields_);
  if (const JsonValue* first = fields_.Find("instructions")) {
    KV_ASSIGN(made_.chain.instructions, items.ReadInstructions(*first));
  }
  if (made_.chain.previous) KV_TRY(items.AddPrevious(*made_.chain.previous));
  KV_TRY(items.ReadInput(fields_.Find("input")));
  Put("messages", items.End(&made_.chat.names));
  for (const std::string_view name : kEqualFields) {
    if (const JsonValue* value = fields_.Find(name)) Put(name, *value);
  }
  uint32_t most = 0;
  fields_.Unsigned("max_output_tokens", 0, UINT32_MAX, &most);
  if (fields_.Has("max_output_tokens")) Put("max_tokens", JsonValue(int64_t{most}));
  ReadToolChoice();
  ReadText();
  ReadReasoning();
  ReadInclude();
  ReadTruncation();
  bool stores = true;
  fields_.Bool("store", &stores);
  if (stores && find_) made_.form.stored = std::make_shared<StoredMark>();
  const JsonValue* metadata = fields_.Find("metadata");
  if (metadata && !metadata->is_object()) fields_.Fail("metadata", "must be an object");
  if (metadata) made_.form.metadata = TextOf(*metadata);
  for (const char* name :
       {"user", "safety_identifier", "prompt_cache_key", "stream_options", "service_tier"}) {
    fields_.Find(name);  // they change no answer
  }
  if (fields_.error()) return tl::unexpected(*fields_.error());
  made_.chat.fields = tree_.Object(std::move(members_));
  made_.chat.names.fields.assign(std::begin(kItsNames), std::end(kItsNames));
  made_.chat.ignored = fields_.Unread();
  return {};
}

Status ResponsesReader::Refuse() {
  for (const std::string_view name : kRefused) {
    const JsonValue* value = fields_.Find(name);
    if (!value || (value->is_bool() && !value->boolean())) continue;
    return FailField(Code::kUnsupported, std::string(name),
                     "is not supported in this version; leave it out");
  }
  return {};
}

Status ResponsesReader::FindPrevious() {
  std::string& id = made_.form.previous;
  fields_.String("previous_response_id", &id);
  if (fields_.error()) return tl::unexpected(*fields_.error());
  if (!fields_.Has("previous_response_id")) return {};
  if (!find_) {
    return FailField(Code::kNotFound, "previous_response_id",
                     "this server stores no responses (--responses 0): send the whole "
                     "conversation as input");
  }
  auto found = find_(id);
  if (!found) {
    Error error = std::move(found).error();
    error.field = "previous_response_id";
    return tl::unexpected(std::move(error));
  }
  made_.chain.previous = std::move(*found);
  return {};
}

void ResponsesReader::ReadTruncation() {
  std::string truncation = "disabled";
  fields_.String("truncation", &truncation);
  made_.form.drops_oldest = made_.chain.drops_oldest = truncation == "auto";
  if (truncation != "auto" && truncation != "disabled") {
    fields_.Fail("truncation", "is neither \"auto\" nor \"disabled\"");
  }
}

// Tools that are not functions run at OpenAI's servers, or are the client's own kinds: left out.
Status ResponsesReader::ReadTools() {
  KV_ASSIGN(const std::span<const JsonValue> tools, ToolsOf(fields_));
  std::vector<JsonValue> made;
  for (size_t i = 0; i < tools.size(); ++i) {
    const JsonValue& tool = tools[i];
    const std::string path = fmt::format("tools[{}]", i);
    const JsonValue* type = tool.Find("type");
    if (!type || !type->is_string()) {
      return FailField(Code::kInvalidArgument, path + ".type",
                       "is missing, where the type of a tool must be");
    }
    if (type->text() == "function") {
      KV_ASSIGN(made.emplace_back(), ToolOf(tool, path));
    } else {
      fields_.TakeUnread(std::span(&path, 1));
    }
  }
  if (!made.empty()) Put("tools", tree_.Array(made));
  return {};
}

Result<JsonValue> ResponsesReader::ToolOf(const JsonValue& tool, const std::string& path) {
  JsonFields fields(tool, path + ".");
  fields.Find("type");
  std::string_view name, description;
  fields.Text("name", &name);
  if (name.empty()) fields.Fail("name", "is missing, where the name of a function must be");
  std::vector<JsonValue::Member> function = {{"name", tree_.String(name)}};
  fields.Text("description", &description);
  if (fields.Has("description")) {
    function.push_back({"description", tree_.String(description)});
  }
  if (const JsonValue* schema = fields.Find("parameters")) {
    if (!schema->is_object()) fields.Fail("parameters", "is not an object");
    function.push_back({"parameters", *schema});
  }
  bool is_strict = false;
  fields.Bool("strict", &is_strict);
  if (is_strict) function.push_back({"strict", JsonValue(true)});
  if (fields.error()) return tl::unexpected(*fields.error());
  fields_.TakeUnread(fields);
  return tree_.Object(
      {{"type", tree_.String("function")}, {"function", tree_.Object(std::move(function))}});
}

void ResponsesReader::ReadToolChoice() {
  const JsonValue* choice = fields_.Find("tool_choice");
  if (!choice) return;
  made_.form.tool_choice = TextOf(*choice);
  if (choice->is_string()) return Put("tool_choice", *choice);
  const JsonValue* type = choice->Find("type");
  const JsonValue* name = choice->Find("name");
  if (!type || !type->is_string() || type->text() != "function" || !name || !name->is_string()) {
    return fields_.Fail("tool_choice",
                        "must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", "
                        "\"name\": NAME}");
  }
  Put("tool_choice",
      tree_.Object({{"type", *type}, {"function", tree_.Object({{"name", *name}})}}));
}

void ResponsesReader::ReadText() {
  const JsonValue* text = fields_.Find("text");
  if (!text) return;
  if (!text->is_object()) return fields_.Fail("text", "must be an object");
  JsonFields inner(*text, "text.");
  const JsonValue* format = inner.Find("format");
  fields_.TakeUnread(inner);
  if (!format) return;
  const JsonValue* type = format->Find("type");
  const std::string_view name = type && type->is_string() ? type->text() : "";
  if (name == "text" || name == "json_object") {
    Put("response_format", tree_.Object({{"type", *type}}));
  } else if (name == "json_schema") {
    std::vector<JsonValue::Member> schema;
    for (const JsonValue::Member& member : format->members()) {
      if (member.key != "type") schema.push_back(member);
    }
    Put("response_format",
        tree_.Object({{"type", *type}, {"json_schema", tree_.Object(std::move(schema))}}));
  } else {
    fields_.Fail("text.format", "type is not \"text\", \"json_object\" or \"json_schema\"");
  }
}

void ResponsesReader::ReadReasoning() {
  std::vector<JsonValue::Member> variables;
  if (const JsonValue* given = fields_.Find("chat_template_kwargs")) {
    if (!given->is_object()) return fields_.Fail("chat_template_kwargs", "must be an object");
    variables.assign(given->members().begin(), given->members().end());
  }
  if (const JsonValue* reasoning = fields_.Find("reasoning")) {
    if (!reasoning->is_object()) return fields_.Fail("reasoning", "must be an object");
    JsonFields inner(*reasoning, "reasoning.");
    const JsonValue* effort = reasoning->Find("effort");
    if (effort && effort->is_string() && effort->text() == "none") {
      inner.Find("effort");
      variables.push_back({"enable_thinking", JsonValue(false)});
    }
    fields_.TakeUnread(inner);
  }
  if (!variables.empty()) Put("chat_template_kwargs", tree_.Object(std::move(variables)));
}

void ResponsesReader::ReadInclude() {
  std::vector<std::string> include;
  fields_.Strings("include", 64, 256, &include);
  for (size_t i = 0; i < include.size(); ++i) {
    const std::string path = fmt::format("include[{}]", i);
    if (include[i] == "reasoning.encrypted_content") {
      made_.form.encodes_thoughts = true;
    } else {
      fields_.TakeUnread(std::span(&path, 1));
    }
  }
}

Result<ResponsesChat> Translate(std::string_view body, const ModelView& model,
                                const FindResponse& find) {
  KV_ASSIGN(JsonBody parsed, ParseBody(body));
  ResponsesChat made;
  made.chat.tree = std::move(parsed.tree);
  KV_TRY(ResponsesReader(parsed.fields, model, find, &made).Read());
  return made;
}

// What ends with an answer is continued, as in a chat completion: that is not a message to store.
// Nor is what says nothing.
bool EndsWithAnswer(const TranslatedChat& chat) {
  const auto messages = chat.fields.Find("messages")->items();
  return messages.empty() || messages.back().Find("role")->text() == "assistant";
}

}  // namespace

Result<ResponsesCall> ParseResponsesRequest(std::string_view body, const ModelView& model,
                                            const FindResponse& find) {
  KV_ASSIGN(ResponsesChat translated, Translate(body, model, find));
  ResponsesForm& form = translated.form;
  const ResponseChain& chain = translated.chain;
  const bool continues = EndsWithAnswer(translated.chat);
  if (continues) form.stored = nullptr;
  const bool is_state = !continues && (form.stored || chain.previous || chain.drops_oldest);
  SessionState state;
  std::vector<SessionPath::Begin> begins;
  if (is_state) {
    KV_ASSIGN(state, StateOf(translated.chat, chain, model));
  }
  KV_ASSIGN(OpenAiCall call, is_state ? ReadStateChat(translated.chat, model, &state, &begins)
                                      : ReadTranslated(translated.chat, model));
  call.spec.id_prefix = "resp_";
  GenerateRequest& request = call.requests.front();
  form.temperature = request.sampling.temperature;
  form.top_p = request.sampling.top_p;
  form.parallel_calls = call.reading.parallel_calls;
  if (request.max_tokens < UINT32_MAX) form.max_tokens = request.max_tokens;
  ResponsesCall made;
  made.chat = TextOf(translated.chat.fields);
  auto writer = std::make_unique<ResponsesWriter>(form);
  if (form.stored) {
    // As what sessions say: a forget must reach all of it.
    request.use_remote = std::min(request.use_remote, RemoteUse::kRead);
    made.to_store = UnansweredResponse{.state = std::move(state),
                                       .previous = chain.previous,
                                       .begins = std::move(begins),
                                       .form = std::move(form)};
  }
  made.call = {.requests = std::move(call.requests),
               .spec = std::move(call.spec),
               .writer = std::move(writer),
               .slot = call.asked.slot,
               .unseen = std::move(call.unseen),
               .lines = std::move(call.lines)};
  return made;
}

Result<size_t> CountResponsesTokens(std::string_view body, const ModelView& model,
                                    const FindResponse& find) {
  KV_ASSIGN(ResponsesChat translated, Translate(body, model, find));
  if (translated.chain.previous && !EndsWithAnswer(translated.chat)) {
    KV_ASSIGN(SessionState state, StateOf(translated.chat, translated.chain, model));
    if (const auto prompt = PromptOf(state, model)) return prompt->chat.ids.size();
  }
  return CountTranslated(translated.chat, model);
}

}  // namespace kvasir
