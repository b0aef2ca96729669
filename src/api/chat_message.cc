#include "api/chat_message.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/chat_roles.h"
#include "base/result.h"
#include "chat/chat_template.h"
#include "http/errors.h"

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
    const std::string member = type == "refusal" ? "refusal" : "text";
    if (type != member) {
      part.Fail("type",
                fmt::format("\"{}\" is not supported; only text and refusal parts are", type));
    } else if (!part.Has(member)) {
      part.Fail(member, "is missing");
    }
    part.Text(member, &text);
    bool is_span = false;
    part.Bool("span", &is_span);
    if (is_span && (!room.takes_spans || type == "refusal")) {
      part.Fail("span", "is for text parts of chat completions alone");
    }
    if (part.error()) return tl::unexpected(*part.error());
    for (const std::string& name : part.Unread()) room.unread.push_back(part_path + "." + name);
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

// Copies `object` with `value` for `key`, in the same place, or at the end if the key is new.
JsonValue With(const JsonValue& object, std::string_view key, const JsonValue& value,
               JsonTree* tree) {
  std::vector<Member> members(object.members().begin(), object.members().end());
  members.push_back({key, value});
  return tree->Object(std::move(members));
}

// Reads the arguments of a call: an object, which the API carries as JSON text. Anything else stays
// text: what max_tokens cut off, a list.
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

// Reads the old form of a call, as `tool_calls` have it.
Result<JsonValue> CallOf(const JsonValue& function, const std::string& path, MessageRoom& room) {
  const JsonValue call =
      room.tree->Object({{"type", room.tree->String("function")}, {"function", function}});
  KV_ASSIGN(const JsonValue made,
            ReadToolCall(call, fmt::format("{}.{}", path, kFunctionCall), room));
  return room.tree->Array(std::vector<JsonValue>{made});
}

// Tells whether templates see the message as it was sent: most have a role, a content that is a
// text, and no calls.
bool IsAsTemplatesSeeIt(const JsonValue& raw, const ModelView& model) {
  const JsonValue* role = raw.Find("role");
  const JsonValue* content = raw.Find("content");
  if (!role || !role->is_string() || !content || !content->is_string()) return false;
  if (raw.Find("tool_calls") || raw.Find(kFunctionCall)) return false;
  if (role->text() == "developer" && !model.knows_developer) return false;
  return IsChatRole(role->text());
}

// Returns the text of the arguments of call `i`, as it was sent where that is possible.
std::string ArgumentsText(const JsonValue& raw, const JsonValue& function, size_t i) {
  const JsonValue* called = HasFunctionCall(raw)
                                ? raw.Find(kFunctionCall)
                                : raw.Find("tool_calls")->items()[i].Find("function");
  const JsonValue* sent = called->Find("arguments");
  if (sent && sent->is_string() && !jinja::IsBlank(sent->text())) return std::string(sent->text());
  return TextOf(*function.Find("arguments"));
}

// Writes a message's calls into its content, for templates that show no calls: as the "json" format
// has them.
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

}  // namespace

bool HasFunctionCall(const JsonValue& raw) {
  if (!raw.is_object()) return false;
  const JsonValue* call = raw.Find(kFunctionCall);
  const JsonValue* role = raw.Find("role");
  const JsonValue* calls = raw.Find("tool_calls");
  const bool is_answer = role && role->is_string() && role->text() == "assistant";
  return is_answer && call && call->is_object() &&
         (!calls || calls->is_null() || calls->size() == 0);
}

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
      const std::string function = HasFunctionCall(raw) ? std::string(kFunctionCall)
                                                        : fmt::format("tool_calls[{}].function", i);
      return FailField(Code::kInvalidArgument,
                       fmt::format("messages[{}].{}.arguments", index, function),
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
  if (!IsChatRole(role) && role != kFunctionRole) {
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
  if (HasFunctionCall(raw)) {
    KV_ASSIGN(const JsonValue made, CallOf(*raw.Find(kFunctionCall), path, room));
    calls = raw.Find(kFunctionCall);
    std::erase_if(members, [](const Member& member) { return member.key == kFunctionCall; });
    members.push_back({"tool_calls", made});
  }
  if (!calls) {  // templates ask whether the key is there
    std::erase_if(members, [](const Member& member) { return member.key == "tool_calls"; });
  }
  KV_ASSIGN(const JsonValue content,
            ContentOf(fields, path + ".content", role == "assistant", room));
  members.push_back({"content", content});
  if (role == "developer" && !model.knows_developer) {
    members.push_back({"role", room.tree->String("system")});
  } else if (role == kFunctionRole) {
    members.push_back({"role", room.tree->String("tool")});
  }
  return room.tree->Object(std::move(members));  // the last one of equal keys counts
}

}  // namespace kvasir
