#include "api/ollama_request.h"

#include <fmt/format.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/ollama_writer.h"
#include "api/raw_prompts.h"
#include "api/translated_chat.h"
#include "base/result.h"

namespace kvasir {
namespace {

using Pair = JsonValue::Member;

// Options that a chat completion has by the same name.
constexpr ChatNames::Field kOptions[] = {
    {"temperature", "options.temperature"},
    {"top_p", "options.top_p"},
    {"top_k", "options.top_k"},
    {"min_p", "options.min_p"},
    {"seed", "options.seed"},
    {"stop", "options.stop"},
    {"repeat_penalty", "options.repeat_penalty"},
    {"repeat_last_n", "options.repeat_last_n"},
    {"presence_penalty", "options.presence_penalty"},
    {"frequency_penalty", "options.frequency_penalty"},
};

// Lists of token ids.
constexpr std::string_view kOllamaIds[] = {"context"};

struct OllamaChat {
  TranslatedChat chat;
  OllamaForm form;
  std::vector<TokenId> context;  // what the prompt begins with
  bool loads = false;            // it has no prompt
};

// Makes a chat completion of the body's fields.
class OllamaReader {
 public:
  OllamaReader(const JsonValue& body, const ModelView& model, OllamaChat* made)
      : fields_(body), model_(model), made_(*made), tree_(made->chat.tree) {}

  Status ReadChat();
  Status ReadGenerate();

 private:
  void Put(std::string_view key, const JsonValue& value) { members_.push_back({key, value}); }
  Status ReadMessage(const JsonValue& message, const std::string& path, ChatBuilder* builder);
  Status ReadCalls(const JsonValue& calls, const std::string& path, const ChatBuilder& builder,
                   TranslatedMessage* message);
  bool TakeLoad(const char* prompt);
  Status ReadText(std::string_view suffix);
  void ReadThink();
  void ReadOptions();
  Status End();

  JsonFields fields_;
  const ModelView& model_;
  OllamaChat& made_;
  JsonTree& tree_;
  std::vector<Pair> members_;  // of the chat completion
  // Takes the first call that waits for its result: of this name, or, without one, of any.
  std::optional<std::string> TakeCall(std::string_view name);

  struct AskedCall {
    std::string id;
    bool is_answered = false;
  };
  std::vector<AskedCall> calls_;
  size_t first_ = 0;                                                 // all before it are answered
  std::map<std::string, std::deque<size_t>, std::less<>> calls_of_;  // indices by name
};

// Returns whether a field is there and not an empty list, object or text: clients send these as
// "without".
bool Asks(const JsonValue* value) {
  if (value == nullptr) return false;
  return value->size() > 0 || !(value->is_array() || value->is_object() || value->is_string());
}

// Tells whether the body has no prompt. Where it has none, nothing else counts but keep_alive, by
// which a client unloads a model; here it stays loaded.
bool OllamaReader::TakeLoad(const char* prompt) {
  for (const char* name : {prompt, "system", "images", "suffix", "context"}) {
    if (Asks(fields_.Find(name))) return false;
  }
  const JsonValue* value = fields_.Find(prompt);
  if (value && !value->is_string() && !value->is_array()) return false;
  const JsonValue* keep = fields_.Find("keep_alive");
  made_.form.unloads = keep && ((keep->is_number() && keep->number() == 0) ||
                                (keep->is_string() && keep->text() == "0"));
  made_.loads = true;
  return true;
}

Status OllamaReader::ReadChat() {
  if (TakeLoad("messages")) return End();
  const JsonValue* tools = fields_.Find("tools");
  if (Asks(tools)) Put("tools", *tools);
  KV_ASSIGN(const TemplateForm form, FormFor(fields_, model_, !members_.empty()));
  const JsonValue* messages = fields_.Find("messages");
  if (!messages || !messages->is_array() || messages->size() == 0) {
    return FailField(Code::kInvalidArgument, "messages",
                     "is {}, not a list with at least one message",
                     messages ? FoundText(*messages) : "missing");
  }
  ChatBuilder builder(form, &tree_);
  for (size_t i = 0; i < messages->size(); ++i) {
    KV_TRY(ReadMessage(messages->items()[i], fmt::format("messages[{}]", i), &builder));
  }
  Put("messages", builder.End(&made_.chat.names));
  return End();
}

Status OllamaReader::ReadGenerate() {
  made_.form.generates = true;
  if (TakeLoad("prompt")) return End();
  if (Asks(fields_.Find("template"))) {
    return FailField(Code::kUnsupported, "template", "is not supported; leave it out");
  }
  std::string_view suffix;
  bool is_raw = false;
  fields_.Text("suffix", &suffix);
  fields_.Bool("raw", &is_raw);
  fields_.Ids("context", model_.vocab_size, &made_.context);
  if (is_raw || !suffix.empty()) return ReadText(suffix);
  made_.form.context.emplace();
  KV_ASSIGN(const TemplateForm form, FormFor(fields_, model_, /*has_tools=*/false));
  ChatBuilder builder(form, &tree_);
  for (const auto& [name, role] : {std::pair("system", "system"), std::pair("prompt", "user")}) {
    std::string text;
    fields_.String(name, &text);
    if (text.empty() && role == std::string_view("system")) continue;
    TranslatedMessage message;
    message.role = role;
    message.text = std::move(text);
    message.name.path = name;
    builder.Add(std::move(message));
  }
  Put("messages", builder.End(&made_.chat.names));
  return End();
}

// Reads a prompt that the chat template does not see.
Status OllamaReader::ReadText(std::string_view suffix) {
  made_.chat.kind = suffix.empty() ? TranslatedChat::Kind::kText : TranslatedChat::Kind::kInfill;
  for (const char* name : {"system", "context"}) {
    if (!Asks(fields_.Find(name))) continue;
    return FailField(Code::kInvalidArgument, name, "and {} exclude each other",
                     suffix.empty() ? "raw" : "suffix");
  }
  std::string_view prompt;
  fields_.Text("prompt", &prompt);
  Put(suffix.empty() ? "prompt" : "input_prefix", tree_.String(prompt));
  if (!suffix.empty()) Put("input_suffix", tree_.String(suffix));
  return End();
}

Status OllamaReader::End() {
  const JsonValue* images = fields_.Find("images");
  if (Asks(images)) {
    return FailField(Code::kUnsupported, "images", "are not supported: models read text");
  }
  std::string_view name = "default";
  fields_.Text("model", &name);
  Put("model", tree_.String(name));
  bool streams = true;
  fields_.Bool("stream", &streams);
  Put("stream", JsonValue(streams));
  const JsonValue* format = fields_.Find("format");
  if (format && format->is_object()) {
    Put("response_format", tree_.Object({{"type", tree_.String("json_schema")},
                                         {"json_schema", tree_.Object({{"schema", *format}})}}));
  } else if (format && format->is_string() && format->text() == "json") {
    Put("response_format", tree_.Object({{"type", tree_.String("json_object")}}));
  } else if (Asks(format)) {
    fields_.Refuse("format", R"("json" or a JSON Schema)");
  }
  ReadThink();
  CopyFields(fields_, kOwnFields, &members_);
  fields_.Find("keep_alive");  // a model stays loaded
  ReadOptions();
  if (fields_.error()) return tl::unexpected(*fields_.error());
  made_.chat.fields = tree_.Object(std::move(members_));
  ChatNames& names = made_.chat.names;
  names.fields = {{"response_format.json_schema.schema", "format"},
                  {"max_tokens", "options.num_predict"},
                  {"chat_template_kwargs.enable_thinking", "think"}};
  names.fields.insert(names.fields.end(), std::begin(kOptions), std::end(kOptions));
  if (made_.form.generates) names.fields.push_back({"messages", "prompt"});
  if (made_.chat.kind == TranslatedChat::Kind::kInfill) {
    names.fields.insert(
        names.fields.end(),
        {{"input_prefix", "prompt"}, {"input_suffix", "suffix"}, {"infill", "suffix"}});
  }
  made_.chat.ignored = fields_.Unread();
  return {};
}

// Reads `think`. A level of thinking is thinking: models without levels have no other.
void OllamaReader::ReadThink() {
  const JsonValue* think = fields_.Find("think");
  if (!think) return;
  const std::string_view level = think->is_string() ? think->text() : "";
  const bool is_level = level == "low" || level == "medium" || level == "high";
  if (!think->is_bool() && !is_level) {
    return fields_.Refuse("think", R"(true, false, "low", "medium" or "high")");
  }
  const bool is_chat = made_.chat.kind == TranslatedChat::Kind::kChat;
  if (is_chat) {
    const JsonValue is_on = is_level ? JsonValue(true) : *think;
    Put("chat_template_kwargs", tree_.Object({{"enable_thinking", is_on}}));
  }
  const std::string path = "think";
  if (!is_chat || is_level) fields_.TakeUnread(std::span(&path, 1));
}

void OllamaReader::ReadOptions() {
  const JsonValue* options = fields_.Find("options");
  if (!options) return;
  if (!options->is_object()) return fields_.Refuse("options", "an object");
  JsonFields inner(*options, "options.");
  for (const auto& [name, path] : kOptions) {
    if (const JsonValue* value = inner.Find(name)) Put(name, *value);
  }
  // -1 and -2: no limit.
  if (const auto most = inner.Integer("num_predict", -2, UINT32_MAX)) {
    Put("max_tokens", JsonValue(std::max<int64_t>(*most, -1)));
  }
  if (inner.error()) return fields_.Fail(*inner.error());
  fields_.TakeUnread(inner);
}

Status OllamaReader::ReadMessage(const JsonValue& message, const std::string& path,
                                 ChatBuilder* builder) {
  if (!message.is_object()) {
    return FailField(Code::kInvalidArgument, path, "is {}, not an object", KindOf(message));
  }
  JsonFields fields(message, path + ".");
  std::string_view role, tool;
  TranslatedMessage made;
  fields.Text("role", &role);
  fields.String("content", &made.text);
  fields.String("thinking", &made.thought);
  fields.Text("tool_name", &tool);
  if (role != "user" && role != "assistant" && role != "system" && role != "tool") {
    fields.Refuse("role", R"("user", "assistant", "system" or "tool")");
  }
  const JsonValue* images = fields.Find("images");
  if (Asks(images)) fields.Fail("images", "are not supported: models read text");
  if (fields.error()) return tl::unexpected(*fields.error());
  made.role = role;
  made.name.path = path;
  if (!made.thought.empty()) made.name.thought = path + ".thinking";
  if (const JsonValue* calls = fields.Find("tool_calls"); Asks(calls)) {
    KV_TRY(ReadCalls(*calls, path, *builder, &made));
  }
  if (role == "tool") {
    auto id = TakeCall(tool);
    if (!id) {
      return FailField(Code::kInvalidArgument, path,
                       "is the result of a tool, and no call before it waits for one");
    }
    made.call_id = std::move(*id);
  }
  fields_.TakeUnread(fields);
  builder->Add(std::move(made));
  return {};
}

Status OllamaReader::ReadCalls(const JsonValue& calls, const std::string& path,
                               const ChatBuilder& builder, TranslatedMessage* message) {
  if (!calls.is_array()) {
    return FailField(Code::kInvalidArgument, path + ".tool_calls", "is {}, not a list of calls",
                     KindOf(calls));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = fmt::format("{}.tool_calls[{}]", path, i);
    JsonFields call(calls.items()[i], at + ".");
    const JsonValue* found = call.Find("function");
    const JsonValue none;
    JsonFields function(found ? *found : none, at + ".function.");
    const JsonValue* name = function.Find("name");
    const JsonValue* arguments = function.Find("arguments");
    if (!name || !name->is_string() || !arguments || !arguments->is_object()) {
      return FailField(Code::kInvalidArgument, at,
                       "has no function with a name, and an object as arguments");
    }
    const std::string id = fmt::format("call{:05}", calls_.size() + 1);
    fields_.TakeUnread(call);
    fields_.TakeUnread(function);
    message->calls.push_back(builder.Call(id, name->text(), *arguments));
    message->name.calls.push_back(at);
    calls_of_[std::string(name->text())].push_back(calls_.size());
    calls_.push_back({id});
  }
  return {};
}

std::optional<std::string> OllamaReader::TakeCall(std::string_view name) {
  size_t taken = calls_.size();
  if (name.empty()) {
    while (first_ < calls_.size() && calls_[first_].is_answered) ++first_;
    taken = first_;
  } else if (const auto found = calls_of_.find(name); found != calls_of_.end()) {
    std::deque<size_t>& waiting = found->second;
    while (!waiting.empty() && calls_[waiting.front()].is_answered) waiting.pop_front();
    if (!waiting.empty()) taken = waiting.front();
  }
  if (taken == calls_.size()) return std::nullopt;
  calls_[taken].is_answered = true;
  return calls_[taken].id;
}

// Puts the ids of an earlier prompt and its answer before a prompt, which loses its BOS then.
Status PutContext(std::span<const TokenId> context, const ModelView& model,
                  GenerateRequest* request) {
  if (context.empty()) return {};
  std::vector<TokenId>& prompt = request->prompt;
  const bool has_bos = !prompt.empty() && prompt.front() == model.tokenizer->bos();
  if (has_bos) prompt.erase(prompt.begin());
  prompt.insert(prompt.begin(), context.begin(), context.end());
  for (uint32_t& end : request->message_ends) {
    end += static_cast<uint32_t>(context.size()) - has_bos;
  }
  request->begins_with_system = false;
  return CheckLength(prompt.size(), *request, "prompt", model);
}

Result<GenerationCall> CallOfOllama(OllamaChat translated, const ModelView& model,
                                    std::string* chat) {
  if (translated.loads) {
    KV_ASSIGN(std::string name, CheckModel(translated.chat.fields.Find("model")->text(), model));
    return GenerationCall{.requests = {},
                          .spec = {.model = std::move(name)},
                          .writer = std::make_unique<OllamaWriter>(std::move(translated.form)),
                          .slot = {},
                          .unseen = {}};
  }
  KV_ASSIGN(OpenAiCall call, ReadTranslated(translated.chat, model));
  GenerateRequest& request = call.requests.front();
  if (translated.form.context) {
    KV_TRY(PutContext(translated.context, model, &request));
    translated.form.context = request.prompt;
  }
  const bool is_chat = translated.chat.kind == TranslatedChat::Kind::kChat;
  if (is_chat && translated.context.empty()) *chat = TextOf(translated.chat.fields);
  return GenerationCall{.requests = std::move(call.requests),
                        .spec = std::move(call.spec),
                        .writer = std::make_unique<OllamaWriter>(std::move(translated.form)),
                        .slot = call.asked.slot,
                        .unseen = std::move(call.unseen),
                        .head = std::move(call.head)};
}

}  // namespace

Result<GenerationCall> ParseOllamaChat(std::string_view body, const ModelView& model,
                                       std::string* chat) {
  KV_ASSIGN(JsonBody parsed, ParseBody(body, kOllamaIds));
  OllamaChat made;
  made.chat.tree = std::move(parsed.tree);
  KV_TRY(OllamaReader(parsed.fields, model, &made).ReadChat());
  return CallOfOllama(std::move(made), model, chat);
}

Result<GenerationCall> ParseOllamaGenerate(std::string_view body, const ModelView& model,
                                           std::string* chat) {
  KV_ASSIGN(JsonBody parsed, ParseBody(body, kOllamaIds));
  OllamaChat made;
  made.chat.tree = std::move(parsed.tree);
  KV_TRY(OllamaReader(parsed.fields, model, &made).ReadGenerate());
  return CallOfOllama(std::move(made), model, chat);
}

}  // namespace kvasir
