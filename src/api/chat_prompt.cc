#include "api/chat_prompt.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/chat_roles.h"

namespace kvasir {
namespace {

using Member = JsonValue::Member;

// Joins text parts by newlines, as llama.cpp's server and vLLM do.
Result<std::string> JoinParts(std::span<const JsonValue> parts, const std::string& path,
                              MessageRoom& room) {
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
    for (const std::string& name : part.Unread()) {
      if (room.unread.size() < kMaxUnread) room.unread.push_back(part_path + "." + name);
    }
    if (i > 0) joined += '\n';
    joined += text;
  }
  return joined;
}

Result<JsonValue> ContentOf(JsonFields& message, const std::string& path, bool may_be_absent,
                            MessageRoom& room) {
  const JsonValue* content = message.Find("content");
  if (!content) {
    if (may_be_absent) return room.tree->String("");
    return FailField(Code::kInvalidArgument, path, "is missing");
  }
  if (content->is_string()) return *content;
  if (content->is_array()) {
    KV_ASSIGN(const std::string joined, JoinParts(content->items(), path, room));
    return room.tree->String(joined);
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

// The arguments of a call: an object, which the API carries as JSON text. Anything else stays text:
// what max_tokens cut off, a list.
Result<JsonValue> ReadArguments(const JsonValue* sent, MessageRoom& room) {
  if (!sent || sent->is_null()) return room.tree->Object({});
  if (sent->is_object()) return *sent;
  if (!sent->is_string()) return room.tree->String(TextOf(*sent));
  if (jinja::IsBlank(sent->text())) return room.tree->Object({});
  auto parsed = ParseObject(sent->text(), {}, &room.values_left, room.tree);
  if (parsed || parsed.error().code == Code::kExhausted) return parsed;
  return *sent;
}

Result<JsonValue> ReadToolCall(const JsonValue& call, const std::string& path, MessageRoom& room) {
  const JsonValue* function = call.Find("function");
  const JsonValue* name = function ? function->Find("name") : nullptr;
  if (!name || !name->is_string()) {
    return FailField(Code::kInvalidArgument, path, "must be an object with a name");
  }
  KV_ASSIGN(const JsonValue arguments, ReadArguments(function->Find("arguments"), room));
  return With(call, "function", With(*function, "arguments", arguments, room.tree), room.tree);
}

Result<JsonValue> ToolCalls(const JsonValue& calls, const std::string& path, MessageRoom& room) {
  if (!calls.is_array()) {
    return FailField(Code::kInvalidArgument, path, "is {}, not an array", KindOf(calls));
  }
  std::vector<JsonValue> made;
  made.reserve(calls.size());
  for (const JsonValue& call : calls.items()) {
    const std::string call_path = fmt::format("{}[{}].function", path, made.size());
    KV_ASSIGN(const JsonValue one, ReadToolCall(call, call_path, room));
    made.push_back(one);
  }
  return room.tree->Array(made);
}

// Most messages have a role, a content that is a text, and no calls.
bool IsAsTemplatesSeeIt(const JsonValue& raw, const ModelView& model) {
  const JsonValue* role = raw.Find("role");
  const JsonValue* content = raw.Find("content");
  if (!role || !role->is_string() || !content || !content->is_string()) return false;
  if (raw.Find("tool_calls") || (role->text() == "developer" && !model.knows_developer))
    return false;
  return IsChatRole(role->text());
}

// The text of the arguments of call `i`, as it was sent where that is possible.
std::string ArgumentsText(const JsonValue& raw, const JsonValue& function, size_t i) {
  const JsonValue* sent = raw.Find("tool_calls")->items()[i].Find("function")->Find("arguments");
  if (sent && sent->is_string() && !jinja::IsBlank(sent->text())) return std::string(sent->text());
  return TextOf(*function.Find("arguments"));
}

// A message whose calls stand in its content, for templates that show no calls: as the "json"
// format has them.
JsonValue WithWrittenCalls(const JsonValue& raw, const JsonValue& message, JsonTree* tree) {
  std::string content(message.Find("content")->text());
  const auto calls = message.Find("tool_calls")->items();
  for (size_t i = 0; i < calls.size(); ++i) {
    const JsonValue& function = *calls[i].Find("function");
    if (!content.empty()) content += '\n';
    content += "{\"name\": " + TextOf(*function.Find("name")) +
               ", \"arguments\": " + ArgumentsText(raw, function, i) + "}";
  }
  std::vector<Member> members(message.members().begin(), message.members().end());
  std::erase_if(members, [](const Member& member) { return member.key == "tool_calls"; });
  members.push_back({"content", tree->String(content)});
  return tree->Object(std::move(members));
}

// Message `index` in the form in which the template shows its calls. `raw`: as it was sent.
Result<JsonValue> InForm(const JsonValue& raw, const JsonValue& message, size_t index,
                         const TemplateForm& form, JsonTree* tree) {
  const JsonValue* calls = message.Find("tool_calls");
  if (!calls) return message;
  if (form.calls == TemplateForm::Calls::kContent) return WithWrittenCalls(raw, message, tree);
  std::vector<JsonValue> made;
  for (size_t i = 0; i < calls->size(); ++i) {
    const JsonValue& call = calls->items()[i];
    const JsonValue& function = *call.Find("function");
    const bool is_object = function.Find("arguments")->is_object();
    if (!is_object && !form.takes_text_arguments) {
      return FailField(Code::kInvalidArgument,
                       fmt::format("messages[{}].tool_calls[{}].function.arguments", index, i),
                       "is not the JSON text of an object, and the chat template shows nothing "
                       "else");
    }
    if (is_object && form.calls == TemplateForm::Calls::kObjectArguments) {
      made.push_back(call);
      continue;
    }
    const JsonValue text = tree->String(ArgumentsText(raw, function, i));
    made.push_back(With(call, "function", With(function, "arguments", text, tree), tree));
  }
  const JsonValue formed = With(message, "tool_calls", tree->Array(made), tree);
  return form.null_content ? With(formed, "content", JsonValue(), tree) : formed;
}

}  // namespace

Result<JsonValue> ReadMessage(const JsonValue& raw, size_t index, const ModelView& model,
                              MessageRoom* given_room) {
  if (IsAsTemplatesSeeIt(raw, model)) return raw;
  MessageRoom& room = *given_room;
  const std::string path = fmt::format("messages[{}]", index);
  if (!raw.is_object()) {
    return FailField(Code::kInvalidArgument, path, "is {}, not an object", KindOf(raw));
  }
  JsonFields fields(raw, path + ".");
  std::string_view role;
  fields.Text("role", &role);
  if (fields.error()) return tl::unexpected(*fields.error());
  if (!IsChatRole(role)) {
    fields.Fail("role", fmt::format("\"{}\" is not one of {}", role, fmt::join(kChatRoles, ", ")));
    return tl::unexpected(*fields.error());
  }
  std::vector<Member> members(raw.members().begin(), raw.members().end());
  const JsonValue* calls = fields.Find("tool_calls");
  if (calls) {
    KV_ASSIGN(const JsonValue made, ToolCalls(*calls, path + ".tool_calls", room));
    members.push_back({"tool_calls", made});
    calls = made.size() > 0 ? calls : nullptr;
  }
  if (!calls) {  // templates ask whether the key is there
    std::erase_if(members, [](const Member& member) { return member.key == "tool_calls"; });
  }
  KV_ASSIGN(const JsonValue content,
            ContentOf(fields, path + ".content", role == "assistant", room));
  members.push_back({"content", content});
  if (role == "developer" && !model.knows_developer) {
    members.push_back({"role", room.tree->String("system")});
  }
  return room.tree->Object(std::move(members));  // the last one of equal keys counts
}

const JsonValue& FunctionOf(const JsonValue& tool) {
  const JsonValue* function = tool.Find("function");
  return function ? *function : tool;
}

Result<JsonValue> ReadTools(JsonFields& fields) {
  const JsonValue* tools = fields.Find("tools");
  if (!tools) return JsonValue();
  if (!tools->is_array()) {
    return FailField(Code::kInvalidArgument, "tools", "is {}, not an array", KindOf(*tools));
  }
  std::set<std::string_view> names;
  for (const JsonValue& tool : tools->items()) {
    if (!tool.is_object()) {
      return FailField(Code::kInvalidArgument, "tools", "has {} where an object must be",
                       KindOf(tool));
    }
    const JsonValue* name = FunctionOf(tool).Find("name");
    if (!name || !name->is_string() || name->size() == 0) {
      return FailField(Code::kInvalidArgument, "tools", "a tool has no name");
    }
    if (!names.insert(name->text()).second) {
      return FailField(Code::kInvalidArgument, "tools", "the name \"{}\" is there twice",
                       name->text());
    }
  }
  return tools->size() == 0 ? JsonValue() : *tools;
}

Result<const ChatTemplate*> ChosenTemplate(JsonFields& fields, const ModelView& model,
                                           bool has_tools) {
  constexpr const char* kField = "chat_template_name";
  std::optional<std::string> name;
  if (fields.Find(kField)) fields.String(kField, &name.emplace());
  if (fields.error()) return tl::unexpected(*fields.error());
  const ChatTemplate* chosen = model.chat_template->Choose(name, has_tools);
  if (chosen) return chosen;
  return FailField(Code::kInvalidArgument, kField, "\"{}\" is unknown; the model has {}", *name,
                   fmt::join(model.chat_template->names(), ", "));
}

namespace {

// The variables of the template: those of the server's start, then those of the request, which win.
Result<JsonValue> ReadVariables(JsonFields& fields, const ChatTemplate& chat_template,
                                const ModelView& model, JsonTree* tree) {
  const JsonValue* variables = fields.Find("chat_template_kwargs");
  const JsonValue* documents = fields.Find("documents");
  if (variables && !variables->is_object()) {
    fields.Fail("chat_template_kwargs", "must be an object");
  }
  if (documents &&
      (!documents->is_array() || !std::ranges::all_of(documents->items(), &JsonValue::is_object))) {
    fields.Fail("documents", "must be an array of objects");
  } else if (documents && documents->size() > 0 &&
             chat_template.source().find("documents") == std::string::npos) {
    fields.Fail("documents", "the chat template does not use documents; write them in a message");
  }
  if (fields.error()) return tl::unexpected(*fields.error());
  std::vector<Member> members;
  for (const JsonValue* object : {&model.template_variables, variables}) {
    if (object) members.insert(members.end(), object->members().begin(), object->members().end());
  }
  if (documents) members.push_back({"documents", *documents});
  return members.empty() ? JsonValue() : tree->Object(std::move(members));
}

// The text that `continue_final_message` names: true, or one of vLLM's and llama-server's names.
std::optional<Continued> ContinuedOf(const JsonValue& field) {
  if (field.is_bool()) return field.boolean() ? std::optional(Continued::kContent) : std::nullopt;
  return field.text() == "content" ? Continued::kContent : Continued::kReasoningContent;
}

// Whether the answer is a new message, the last one's rest, or whatever follows.
Status ReadEnd(JsonFields& fields, const JsonValue& last, ChatRenderOptions* options) {
  constexpr const char* kField = "continue_final_message";
  const bool says_prompt = fields.Has("add_generation_prompt");
  fields.Bool("add_generation_prompt", &options->add_generation_prompt);
  const JsonValue* field = fields.Find(kField);
  const JsonValue* calls = last.Find("tool_calls");
  const bool has_calls = calls && calls->size() > 0;
  if (!field) {
    const bool is_answer = last.Find("role")->text() == "assistant" && !has_calls;
    if (is_answer && !says_prompt) options->continues = Continued::kContent;
  } else if (!field->is_bool() && (!field->is_string() || (field->text() != "content" &&
                                                           field->text() != "reasoning_content"))) {
    fields.Fail(kField, "is not true, false, \"content\" or \"reasoning_content\"");
  } else {
    options->continues = ContinuedOf(*field);
    if (options->continues && says_prompt && options->add_generation_prompt) {
      fields.Fail(kField, "and add_generation_prompt cannot both be true");
    } else if (options->continues && has_calls) {
      fields.Fail(kField, "a message with tool calls cannot be continued");
    }
  }
  return fields.error() ? Status(tl::unexpected(*fields.error())) : Status();
}

// The error of a template, of the message at which it stopped: where it was at none, the last one
// of the shortest beginning that it refuses. O(log messages) renderings.
template <typename Render>
Error TemplateError(const Error& error, size_t num_messages, const Render& render) {
  if (error.field && !error.index) return error;  // of the end of the chat
  size_t least = 1, most = num_messages;
  while (!error.index && least < most) {
    const size_t middle = least + (most - least) / 2;
    if (render(middle)) {
      least = middle + 1;
    } else {
      most = middle;
    }
  }
  const uint64_t index = error.index.value_or(most - 1);
  return {error.code, error.message, fmt::format("messages[{}]", index)};
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
  KV_ASSIGN(const JsonValue tools, ReadTools(fields));
  KV_ASSIGN(const ChatTemplate* chat_template, ChosenTemplate(fields, model, !tools.is_null()));
  const TemplateForm& form = chat_template->form();
  MessageRoom room{.tree = tree};
  JsonValue last;  // as ReadMessage reads it
  std::vector<JsonValue> rendered_from;
  std::vector<jinja::ChatPart> left_out;  // texts beside calls
  rendered_from.reserve(messages->size());
  for (const JsonValue& raw : messages->items()) {
    const size_t index = rendered_from.size();
    KV_ASSIGN(const JsonValue message, ReadMessage(raw, index, model, &room));
    last = message;
    KV_ASSIGN(rendered_from.emplace_back(), InForm(raw, message, index, form, tree));
    if (rendered_from.back().Find("content")->is_null() &&
        !jinja::IsBlank(message.Find("content")->text())) {
      left_out.push_back(
          {.kind = jinja::ChatPart::Kind::kContent, .message = static_cast<uint32_t>(index)});
    }
  }
  fields.TakeUnread(room.unread);
  ChatRenderOptions options;
  options.now_unix_s = model.template_now_unix_s;
  options.max_steps = model.template_steps;
  KV_TRY(ReadEnd(fields, last, &options));
  KV_ASSIGN(const JsonValue variables, ReadVariables(fields, *chat_template, model, tree));
  if (model.tokenizer) {
    options.bos_token = model.tokenizer->bos_text();
    options.eos_token = model.tokenizer->eos_text();
  }
  const auto render = [&](size_t count) {
    return chat_template->Render(tree->Array(std::span(rendered_from).first(count)), tools,
                                 variables, options);
  };
  auto chat = render(rendered_from.size());
  if (!chat) return tl::unexpected(TemplateError(chat.error(), rendered_from.size(), render));
  chat->unseen.insert(chat->unseen.end(), left_out.begin(), left_out.end());
  return std::move(*chat);
}

std::vector<std::string> PathsOf(std::span<const jinja::ChatPart> unseen) {
  std::vector<std::string> paths;
  for (size_t i = 0; i < unseen.size() && paths.size() < kMaxUnread; ++i) {
    const jinja::ChatPart& part = unseen[i];
    const std::string message = fmt::format("messages[{}]", part.message);
    const std::string call = fmt::format("{}.tool_calls[{}]", message, part.call);
    switch (part.kind) {
      case jinja::ChatPart::Kind::kTools:
        paths.emplace_back("tools");
        break;
      case jinja::ChatPart::Kind::kContent:
        paths.push_back(part.is_alone ? message : message + ".content");
        break;
      case jinja::ChatPart::Kind::kReasoning:
        paths.push_back(message + ".reasoning_content");
        break;
      case jinja::ChatPart::Kind::kRefusal:
        paths.push_back(message + ".refusal");
        break;
      case jinja::ChatPart::Kind::kCallName:
        paths.push_back(call + ".function.name");
        break;
      case jinja::ChatPart::Kind::kCallArguments:
        if (!paths.empty() && paths.back() == call + ".function.name") {
          paths.back() = call;  // nothing of the call is shown
        } else {
          paths.push_back(call + ".function.arguments");
        }
        break;
    }
  }
  return paths;
}

Error NoTextError(const std::string& field, const ModelView& model) {
  return {Code::kUnsupported,
          model.no_text + ", or send token ids as the prompt of /v1/completions", field};
}

Error EncodeError(const Error& error, const std::string& field, size_t most_tokens,
                  const ModelView& model) {
  if (error.code != Code::kExhausted) return {error.code, error.text(), field};
  return {Code::kInvalidArgument,
          fmt::format("has more than {} tokens; the context has {}", most_tokens, model.ctx_size),
          field};
}

}  // namespace kvasir
