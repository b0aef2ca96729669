#include "server/chat_prompt.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvasir {
namespace {

using Member = JsonValue::Member;

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

// The tree that keeps converted messages, and how many values the arguments of their calls may
// still have.
struct Room {
  JsonTree* tree;
  size_t* values_left;
};

// Joins text parts by newlines, as llama.cpp's server and vLLM do.
Result<std::string> JoinParts(std::span<const JsonValue> parts, const std::string& path) {
  std::string joined;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part_path = fmt::format("{}[{}]", path, i);
    if (!parts[i].is_object()) {
      return FailField(Code::kInvalidArgument, part_path, "is {}, not an object", KindOf(parts[i]));
    }
    JsonFields part(parts[i], part_path + ".");
    std::string_view type, text;
    part.Text("type", &type);
    if (part.error()) return tl::unexpected(*part.error());
    if (type != "text") {
      part.Fail("type", fmt::format("\"{}\" is not supported; only text parts are", type));
    } else if (!part.Has("text")) {
      part.Fail("text", "is missing");
    }
    part.Text("text", &text);
    if (part.error()) return tl::unexpected(*part.error());
    if (i > 0) joined += '\n';
    joined += text;
  }
  return joined;
}

Result<JsonValue> ContentOf(JsonFields& message, const std::string& path, bool may_be_absent,
                            JsonTree* tree) {
  const JsonValue* content = message.Find("content");
  if (!content) {
    if (may_be_absent) return tree->String("");
    return FailField(Code::kInvalidArgument, path, "is missing");
  }
  if (content->is_string()) return *content;
  if (content->is_array()) {
    KV_ASSIGN(const std::string joined, JoinParts(content->items(), path));
    return tree->String(joined);
  }
  return FailField(Code::kInvalidArgument, path, "is {}, not a string or an array of text parts",
                   KindOf(*content));
}

// A copy of `object` with `value` for `key`, in the same place, or at the end if the key is new.
JsonValue With(const JsonValue& object, std::string_view key, const JsonValue& value,
               JsonTree* tree) {
  std::vector<Member> members(object.members().begin(), object.members().end());
  members.push_back({key, value});
  return tree->Object(std::move(members));
}

// Templates expect arguments as an object; the API carries them as JSON text.
Result<JsonValue> ToolCall(const JsonValue& call, const std::string& path, Room& room) {
  const JsonValue* function = call.Find("function");
  const JsonValue* name = function ? function->Find("name") : nullptr;
  if (!name || !name->is_string()) {
    return FailField(Code::kInvalidArgument, path, "must be an object with a name");
  }
  const JsonValue* arguments = function->Find("arguments");
  if (!arguments || !arguments->is_string()) return call;
  auto parsed = ParseObject(arguments->text(), {}, room.values_left, room.tree);
  if (parsed) {
    return With(call, "function", With(*function, "arguments", *parsed, room.tree), room.tree);
  }
  if (parsed.error().code == Code::kExhausted) return tl::unexpected(parsed.error());
  return call;  // invalid JSON stays text
}

Result<JsonValue> ToolCalls(const JsonValue& calls, const std::string& path, Room& room) {
  if (!calls.is_array()) {
    return FailField(Code::kInvalidArgument, path, "is {}, not an array", KindOf(calls));
  }
  std::vector<JsonValue> made;
  made.reserve(calls.size());
  for (const JsonValue& call : calls.items()) {
    const std::string call_path = fmt::format("{}[{}].function", path, made.size());
    KV_ASSIGN(const JsonValue one, ToolCall(call, call_path, room));
    made.push_back(one);
  }
  return room.tree->Array(made);
}

// A message whose calls stand in its content, for templates that do not know calls: as the "json"
// format has them, with the arguments as they were sent.
JsonValue WithWrittenCalls(const JsonValue& raw, const JsonValue& message, JsonTree* tree) {
  const JsonValue* calls = message.Find("tool_calls");
  if (!calls || calls->size() == 0) return message;
  std::string content(message.Find("content")->text());
  for (size_t i = 0; i < calls->size(); ++i) {
    const JsonValue& function = *calls->items()[i].Find("function");
    const JsonValue* sent = raw.Find("tool_calls")->items()[i].Find("function")->Find("arguments");
    const JsonValue* arguments = function.Find("arguments");
    if (!content.empty()) content += '\n';
    content += "{\"name\": " + TextOf(*function.Find("name")) + ", \"arguments\": ";
    if (!arguments || arguments->is_null()) {
      content += "{}";
    } else {
      content += sent->is_string() && arguments->is_object() ? std::string(sent->text())
                                                             : TextOf(*arguments);
    }
    content += '}';
  }
  return With(message, "content", tree->String(content), tree);
}

}  // namespace

Result<JsonValue> ReadMessage(const JsonValue& raw, size_t index, const ModelView& model,
                              size_t* values_left, JsonTree* tree) {
  Room room{tree, values_left};
  const std::string path = fmt::format("messages[{}]", index);
  if (!raw.is_object()) {
    return FailField(Code::kInvalidArgument, path, "is {}, not an object", KindOf(raw));
  }
  JsonFields fields(raw, path + ".");
  std::string_view role;
  fields.Text("role", &role);
  if (fields.error()) return tl::unexpected(*fields.error());
  if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
    fields.Fail("role",
                fmt::format("\"{}\" is not one of system, developer, user, assistant, tool", role));
    return tl::unexpected(*fields.error());
  }
  std::vector<Member> members(raw.members().begin(), raw.members().end());
  const JsonValue* calls = fields.Find("tool_calls");
  if (calls) {
    KV_ASSIGN(const JsonValue made, ToolCalls(*calls, path + ".tool_calls", room));
    members.push_back({"tool_calls", made});
  } else {
    std::erase_if(members, [](const Member& member) { return member.key == "tool_calls"; });
  }
  const bool may_be_absent = role == "assistant" && calls && calls->size() > 0;
  KV_ASSIGN(const JsonValue content,
            ContentOf(fields, path + ".content", may_be_absent, room.tree));
  members.push_back({"content", content});
  if (role == "developer" && !model.knows_developer) {
    members.push_back({"role", room.tree->String("system")});
  }
  return room.tree->Object(std::move(members));  // the last one of equal keys counts
}

Result<JsonValue> ReadTools(JsonFields& fields) {
  const JsonValue* tools = fields.Find("tools");
  if (!tools) return JsonValue();
  if (!tools->is_array()) {
    return FailField(Code::kInvalidArgument, "tools", "is {}, not an array", KindOf(*tools));
  }
  for (const JsonValue& tool : tools->items()) {
    if (!tool.is_object()) {
      return FailField(Code::kInvalidArgument, "tools", "has {} where an object must be",
                       KindOf(tool));
    }
  }
  return tools->size() == 0 ? JsonValue() : *tools;
}

namespace {

// The variables that a request gives the template.
Result<JsonValue> ReadVariables(JsonFields& fields, const ModelView& model, JsonTree* tree) {
  const JsonValue* variables = fields.Find("chat_template_kwargs");
  const JsonValue* documents = fields.Find("documents");
  if (variables && !variables->is_object()) {
    fields.Fail("chat_template_kwargs", "must be an object");
  }
  if (documents &&
      (!documents->is_array() || !std::ranges::all_of(documents->items(), &JsonValue::is_object))) {
    fields.Fail("documents", "must be an array of objects");
  } else if (documents && documents->size() > 0 &&
             model.chat_template->source().find("documents") == std::string::npos) {
    fields.Fail("documents", "the chat template does not use documents; write them in a message");
  }
  if (fields.error()) return tl::unexpected(*fields.error());
  const JsonValue given = variables ? *variables : JsonValue();
  if (!documents) return given;
  return With(variables ? given : tree->Object({}), "documents", *documents, tree);
}

}  // namespace

Result<RenderedChat> RenderMessages(JsonFields& fields, JsonTree* tree, const ModelView& model) {
  if (!model.chat_template) {
    if (!model.tokenizer) return tl::unexpected(NoTextError("messages", model));
    return FailField(Code::kUnsupported, "messages",
                     "the model has no chat template; start the server with --chat-template-file, "
                     "or use /v1/completions");
  }
  const JsonValue* messages = fields.Find("messages");
  if (!messages) return FailField(Code::kInvalidArgument, "messages", "is missing");
  if (!messages->is_array() || messages->size() == 0) {
    return FailField(Code::kInvalidArgument, "messages",
                     "must be an array with at least one message");
  }
  size_t values_left = kMaxJsonValues;
  std::vector<JsonValue> rendered_from;
  rendered_from.reserve(messages->size());
  for (const JsonValue& raw : messages->items()) {
    KV_ASSIGN(const JsonValue message,
              ReadMessage(raw, rendered_from.size(), model, &values_left, tree));
    rendered_from.push_back(model.knows_calls ? message : WithWrittenCalls(raw, message, tree));
  }
  KV_ASSIGN(const JsonValue tools, ReadTools(fields));
  ChatRenderOptions options;
  fields.Bool("add_generation_prompt", &options.add_generation_prompt);
  KV_ASSIGN(const JsonValue variables, ReadVariables(fields, model, tree));
  if (model.tokenizer) {
    options.bos_token = model.tokenizer->bos_text();
    options.eos_token = model.tokenizer->eos_text();
  }
  auto chat = model.chat_template->Render(tree->Array(rendered_from), tools, variables, options);
  if (!chat) return FailField(chat.error().code, "messages", "{}", chat.error().text());
  return std::move(*chat);
}

Error NoTextError(const std::string& field, const ModelView& model) {
  return {Code::kUnsupported,
          model.no_text + ", or send token ids as the prompt of /v1/completions", field};
}

Error EncodeError(const Error& error, const std::string& field, const EncodeOptions& options,
                  const ModelView& model) {
  if (error.code != Code::kExhausted) return {error.code, error.text(), field};
  return {Code::kInvalidArgument,
          fmt::format("has more than {} tokens; the context has {}", options.max_tokens,
                      model.ctx_size),
          field};
}

namespace {

// Appends the ids of bytes [begin, end) of the chat.
Status AppendPart(const RenderedChat& chat, size_t begin, size_t end, const ModelView& model,
                  std::vector<TokenId>* ids) {
  if (begin == end) return {};
  EncodeOptions options;
  options.add_special = false;  // the template writes special tokens
  options.at_start = begin == 0;
  options.written = *chat.written;
  options.max_tokens = model.max_text_tokens();
  if (begin > 0 || end < chat.text.size()) {
    options.literal.emplace_back(0, 0);  // a part without literal text is a part of a chat too
  }
  for (const auto& [from, to] : chat.literal) {
    if (to <= begin || from >= end) continue;
    options.literal.emplace_back(std::max(from, begin) - begin, std::min(to, end) - begin);
  }
  const std::string_view part = std::string_view(chat.text).substr(begin, end - begin);
  auto more = model.tokenizer->Encode(part, options);
  if (!more) return tl::unexpected(EncodeError(more.error(), "messages", options, model));
  if (ids->empty()) {
    *ids = std::move(*more);
  } else {
    ids->insert(ids->end(), more->begin(), more->end());
  }
  return {};
}

Result<std::vector<TokenId>> EncodeAround(const RenderedChat& chat, const ModelView& model,
                                          std::span<const KnownIds> known) {
  std::vector<TokenId> ids;
  size_t done = 0;
  for (const KnownIds& one : known) {
    KV_TRY(AppendPart(chat, done, one.begin, model, &ids));
    ids.insert(ids.end(), one.ids.begin(), one.ids.end());
    done = one.end;
  }
  KV_TRY(AppendPart(chat, done, chat.text.size(), model, &ids));
  return ids;
}

// Whether the ids decode to the text.
bool Reads(const Tokenizer& tokenizer, std::span<const TokenId> ids, std::string_view text) {
  const auto decoder = tokenizer.StartDecoder(SpecialTokens::kShow);
  std::string part;
  const auto take = [&] {
    const bool same = text.starts_with(part);
    if (same) text.remove_prefix(part.size());
    part.clear();
    return same;
  };
  for (const TokenId id : ids) {
    decoder->Append(id, &part);
    if (!take()) return false;
  }
  decoder->Finish(&part);
  return take() && text.empty();
}

}  // namespace

Result<ChatPrompt> EncodeChat(const RenderedChat& chat, const ModelView& model,
                              std::span<const KnownIds> known) {
  const Tokenizer& tokenizer = *model.tokenizer;
  ChatPrompt prompt;
  if (model.think) {
    const size_t end = chat.message_end.empty() ? 0 : chat.message_end.back();
    prompt.ends_inside_thought =
        EndsInsideThought(*model.think, std::string_view(chat.text).substr(end));
  }
  KV_ASSIGN(prompt.ids, EncodeAround(chat, model, known));
  if (!known.empty() && !Reads(tokenizer, prompt.ids, chat.text)) {
    // Some tokenizers add a space to what they encode: then the ids must decode to the same.
    KV_ASSIGN(std::vector<TokenId> plain, EncodeAround(chat, model, {}));
    if (!Reads(tokenizer, prompt.ids, tokenizer.Decode(plain, SpecialTokens::kShow))) {
      prompt.ids = std::move(plain);
    }
  }
  // A message ends with the token whose text reaches its last byte. (Where decoding adds or
  // drops a space, the result may be off by one: good enough for a receipt.)
  TextStream stream(tokenizer, SpecialTokens::kShow);
  size_t bytes = 0, message = 0;
  for (size_t i = 0; i < prompt.ids.size() && message < chat.message_end.size(); ++i) {
    bytes += stream.Append(prompt.ids[i]).size();
    for (; message < chat.message_end.size() && bytes >= chat.message_end[message]; ++message) {
      prompt.message_ends.push_back(static_cast<uint32_t>(i + 1));
    }
  }
  while (prompt.message_ends.size() < chat.message_end.size()) {
    prompt.message_ends.push_back(static_cast<uint32_t>(prompt.ids.size()));
  }
  return prompt;
}

}  // namespace kvasir
