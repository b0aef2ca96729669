#include "api/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "api/cache_marks.h"
#include "api/responses_items.h"
#include "api/responses_writer.h"
#include "api/session_prompt.h"
#include "base/result.h"

namespace kvasir {
namespace {

// Fields of OpenAI's that a chat completion has by the same name too.
constexpr std::string_view kOpenAiFields[] = {"parallel_tool_calls", "prompt_cache_options",
                                              "prompt_cache_retention"};

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
  const JsonValue messages = items.End(&made_.chat.names);
  if (messages.size() == 0) {
    return FailField(Code::kInvalidArgument, "input",
                     "has no message: the thoughts in it cannot be read here");
  }
  Put("messages", messages);
  CopyFields(fields_, kSameFields, &members_);
  CopyFields(fields_, kOwnFields, &members_);
  CopyFields(fields_, kOpenAiFields, &members_);
  uint32_t most = 0;
  fields_.Unsigned("max_output_tokens", 0, UINT32_MAX, &most);
  if (fields_.Has("max_output_tokens")) Put("max_tokens", JsonValue(int64_t{most}));
  ReadToolChoice();
  ReadText();
  ReadReasoning();
  ReadInclude();
  ReadTruncation();
  const bool has_no_tokens = fields_.Has("max_output_tokens") && most == 0;
  made_.form.prewarms = ReadCacheOptions(fields_).prewarms || has_no_tokens;
  bool stores = true;
  fields_.Bool("store", &stores);
  if (stores && !made_.form.prewarms && find_) made_.form.stored = std::make_shared<StoredMark>();
  const JsonValue* metadata = fields_.Find("metadata");
  if (metadata && !metadata->is_object()) fields_.Refuse("metadata", "an object");
  if (metadata) made_.form.metadata = TextOf(*metadata);
  if (const JsonValue* options = fields_.Find("stream_options")) {
    if (!options->is_object()) fields_.Refuse("stream_options", "an object");
    fields_.TakeUnread(JsonFields(*options, "stream_options."));  // none changes an answer
  }
  if (fields_.error()) return tl::unexpected(*fields_.error());
  made_.chat.fields = tree_.Object(std::move(members_));
  auto& names = made_.chat.names.fields;
  names.insert(names.end(), std::begin(kItsNames), std::end(kItsNames));
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
    fields_.Refuse("truncation", R"("auto" or "disabled")");
  }
}

// Reads tools. Those that are not functions run at OpenAI's servers, or are the client's own kinds:
// left out.
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
      JsonFields function(tool, path + ".");
      function.Find("type");
      KV_ASSIGN(made.emplace_back(), ReadFunction(function, "parameters", &tree_));
      fields_.TakeUnread(function);
    } else {
      fields_.TakeUnread(std::span(&path, 1));
    }
  }
  if (!made.empty()) Put("tools", tree_.Array(made));
  return {};
}

void ResponsesReader::ReadToolChoice() {
  const JsonValue* choice = fields_.Find("tool_choice");
  if (!choice) return;
  made_.form.tool_choice = TextOf(*choice);
  const std::string_view text = choice->is_string() ? choice->text() : "";
  if (text == "none" || text == "auto" || text == "required") return Put("tool_choice", *choice);
  JsonFields inner(*choice, "tool_choice.");
  const JsonValue* type = inner.Find("type");
  const JsonValue* name = inner.Find("name");
  fields_.TakeUnread(inner);
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
  if (!text->is_object()) return fields_.Refuse("text", "an object");
  JsonFields inner(*text, "text.");
  const JsonValue* format = inner.Find("format");
  fields_.TakeUnread(inner);
  if (!format) return;
  JsonFields form(*format, "text.format.");
  const JsonValue* type = form.Find("type");
  const std::string_view name = type && type->is_string() ? type->text() : "";
  if (name == "text" || name == "json_object") {
    Put("response_format", tree_.Object({{"type", *type}}));
    fields_.TakeUnread(form);
  } else if (name == "json_schema") {
    std::vector<JsonValue::Member> schema;
    for (const JsonValue::Member& member : format->members()) {
      if (member.key != "type") schema.push_back(member);
    }
    Put("response_format",
        tree_.Object({{"type", *type}, {"json_schema", tree_.Object(std::move(schema))}}));
  } else {
    fields_.Fail("text.format",
                 fmt::format(R"(type is {}, not "text", "json_object" or "json_schema")",
                             type ? FoundText(*type) : "missing"));
  }
}

void ResponsesReader::ReadReasoning() {
  std::vector<JsonValue::Member> variables;
  if (const JsonValue* given = fields_.Find("chat_template_kwargs")) {
    if (!given->is_object()) return fields_.Refuse("chat_template_kwargs", "an object");
    variables.assign(given->members().begin(), given->members().end());
  }
  if (const JsonValue* reasoning = fields_.Find("reasoning")) {
    if (!reasoning->is_object()) return fields_.Refuse("reasoning", "an object");
    JsonFields inner(*reasoning, "reasoning.");
    const JsonValue* effort = reasoning->Find("effort");
    if (effort && effort->is_string() && effort->text() == "none") {
      inner.Find("effort");
      variables.push_back({"enable_thinking", JsonValue(false)});
      made_.chat.names.fields.push_back(
          {"chat_template_kwargs.enable_thinking", "reasoning.effort"});
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

// Tells whether a chat ends with an answer, which is continued, as in a chat completion, or says
// nothing. Then it has no message to store.
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
  const bool is_limited = request.max_tokens < UINT32_MAX && !form.prewarms;
  if (is_limited) form.max_tokens = request.max_tokens;
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
               .head = std::move(call.head)};
  return made;
}

Result<size_t> CountResponsesTokens(std::string_view body, const ModelView& model,
                                    const FindResponse& find) {
  KV_ASSIGN(ResponsesChat translated, Translate(body, model, find));
  JsonFields fields(translated.chat.fields);
  KV_TRY(ReadModel(fields, model));
  if (translated.chain.previous && !EndsWithAnswer(translated.chat)) {
    KV_ASSIGN(SessionState state, StateOf(translated.chat, translated.chain, model));
    if (const auto prompt = PromptOf(state, model)) return prompt->chat.ids.size();
  }
  return CountTranslated(translated.chat, model);
}

}  // namespace kvasir
