#include "api/translated_chat.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "api/cache_marks.h"
#include "api/chat_tokens.h"
#include "base/fault.h"
#include "base/result.h"

namespace kvasir {
namespace {

using Member = JsonValue::Member;

constexpr std::string_view kMessage = "messages[", kCall = ".tool_calls[";

// Takes "12]" from the front of `text`.
std::optional<size_t> TakeIndex(std::string_view* text) {
  size_t index = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), index);
  if (error != std::errc() || end == text->data() + text->size() || *end != ']') return {};
  text->remove_prefix(static_cast<size_t>(end - text->data()) + 1);
  return index;
}

// Names what the prompt lacks of a message, by the request's name of the message or of a call.
std::string NameOfPart(const ChatNames::Message& message, std::string_view part) {
  if (part == ".reasoning_content") return message.thought;
  if (part == ".content" && message.path.ends_with(']')) return message.path + ".content";
  if (!part.starts_with(kCall)) return message.path;
  part.remove_prefix(kCall.size());
  const auto call = TakeIndex(&part);
  return call && *call < message.calls.size() ? message.calls[*call] : message.path;
}

Error Named(Error error, const ChatNames& names) {
  if (error.field) error.field = names.Of(*error.field);
  return error;
}

}  // namespace

std::string ChatNames::Of(std::string_view field) const {
  if (field.starts_with(kMessage)) {
    std::string_view rest = field.substr(kMessage.size());
    const auto index = TakeIndex(&rest);
    if (index && *index < messages.size()) return NameOfPart(messages[*index], rest);
  }
  for (const auto& [ours, theirs] : fields) {
    if (!field.starts_with(ours)) continue;
    const std::string_view rest = field.substr(ours.size());
    if (rest.empty() || rest.front() == '.') return std::string(theirs).append(rest);
  }
  return std::string(field);
}

void TranslatedMessage::AddText(std::string_view more) {
  if (!text.empty() && !more.empty()) text += '\n';
  text += more;
}

size_t ChatBuilder::Add(TranslatedMessage message) {
  if (message.role == "system" && FaultActive(Fault::kSystemHoisted)) {
    messages_.insert(messages_.begin(), std::move(message));
    return 0;
  }
  TranslatedMessage* last = messages_.empty() ? nullptr : &messages_.back();
  bool joins = false;
  if (message.role == "system" && last && last->role == "system") {
    joins = !form_.takes_late_system || !form_.takes_same_role_twice;
  } else if (message.role == "system" && last && !form_.takes_late_system) {
    message.role = "user";
    message.text = "<system>\n" + message.text + "\n</system>";
    joins = last->role == "user";
  } else if (message.role != "tool") {
    joins = last && last->role == message.role && !form_.takes_same_role_twice;
  }
  // A stored one stays as it is: the template says whether it takes the next.
  if (last && !last->whole.is_null()) joins = false;
  if (!joins) {
    messages_.push_back(std::move(message));
    return messages_.size() - 1;
  }
  last->AddText(message.text);
  if (!message.mark.is_null()) last->mark = message.mark;
  if (!last->thought.empty() && !message.thought.empty()) last->thought += '\n';
  last->thought += message.thought;
  if (last->name.thought.empty()) last->name.thought = std::move(message.name.thought);
  std::ranges::move(message.calls, std::back_inserter(last->calls));
  std::ranges::move(message.name.calls, std::back_inserter(last->name.calls));
  return messages_.size() - 1;
}

void ChatBuilder::AddKept(const JsonValue& whole, ChatNames::Message name) {
  TranslatedMessage message;
  message.role = whole.Find("role")->text();
  const bool joins = message.role == "system" && is_last("system") &&
                     (!form_.takes_late_system || !form_.takes_same_role_twice);
  if (joins) {
    message.text = whole.Find("content")->text();
    name.kept.reset();
  } else {
    message.whole = whole;
  }
  message.name = std::move(name);
  if (joins) {
    Add(std::move(message));
  } else {
    messages_.push_back(std::move(message));
  }
}

JsonValue ChatBuilder::Call(std::string_view id, std::string_view name,
                            const JsonValue& arguments) const {
  // As the model has written it, where the template shows a text.
  const JsonValue shown = form_.calls == TemplateForm::Calls::kObjectArguments
                              ? arguments
                              : tree_->String(SpacedTextOf(arguments));
  const JsonValue function = tree_->Object({{"name", tree_->String(name)}, {"arguments", shown}});
  return tree_->Object(
      {{"id", tree_->String(id)}, {"type", tree_->String("function")}, {"function", function}});
}

JsonValue ChatBuilder::End(ChatNames* names) {
  std::vector<JsonValue> messages;
  for (TranslatedMessage& one : messages_) {
    std::vector<Member> members = {{"role", tree_->String(one.role)}};
    if (one.role == "tool") members.push_back({"tool_call_id", tree_->String(one.call_id)});
    members.push_back({"content", tree_->String(one.text)});
    if (!one.thought.empty()) {
      members.push_back({"reasoning_content", tree_->String(one.thought)});
    }
    if (!one.calls.empty()) members.push_back({"tool_calls", tree_->Array(one.calls)});
    if (!one.mark.is_null()) members.push_back({kBreakpoint, one.mark});
    messages.push_back(one.whole.is_null() ? tree_->Object(std::move(members)) : one.whole);
    names->messages.push_back(std::move(one.name));
  }
  messages_.clear();
  return tree_->Array(messages);
}

void CopyFields(JsonFields& from, std::span<const std::string_view> names,
                std::vector<Member>* to) {
  for (const std::string_view name : names) {
    if (const JsonValue* value = from.Find(name)) to->push_back({name, *value});
  }
}

Result<std::string_view> NeededText(JsonFields& fields, std::string_view name) {
  std::string_view text;
  fields.Text(name, &text);
  if (!fields.Has(name)) fields.Fail(name, "is missing, where a text must be");
  if (fields.error()) return tl::unexpected(*fields.error());
  return text;
}

Result<JsonValue> ReadFunction(JsonFields& function, std::string_view schema, JsonTree* tree) {
  KV_ASSIGN(const std::string_view name, NeededText(function, "name"));
  std::vector<Member> members = {{"name", tree->String(name)}};
  std::string_view description;
  function.Text("description", &description);
  if (function.Has("description")) members.push_back({"description", tree->String(description)});
  if (const JsonValue* parameters = function.Find(schema)) {
    if (!parameters->is_object()) function.Fail(schema, "is not an object");
    members.push_back({"parameters", *parameters});
  }
  bool is_strict = false;
  function.Bool("strict", &is_strict);
  if (is_strict) members.push_back({"strict", JsonValue(true)});
  if (function.error()) return tl::unexpected(*function.error());
  return tree->Object(
      {{"type", tree->String("function")}, {"function", tree->Object(std::move(members))}});
}

Result<std::span<const JsonValue>> ToolsOf(JsonFields& fields) {
  const JsonValue* tools = fields.Find("tools");
  if (!tools) return std::span<const JsonValue>();
  if (!tools->is_array()) {
    return FailField(Code::kInvalidArgument, "tools", "is {}, not a list of tools", KindOf(*tools));
  }
  return tools->items();
}

Result<TemplateForm> FormFor(JsonFields& fields, const ModelView& model, bool has_tools) {
  if (!model.chat_template) return TemplateForm();
  KV_ASSIGN(const ChatTemplate* chosen, ChosenTemplate(fields, model, has_tools));
  return chosen->form();
}

Result<OpenAiCall> ReadTranslated(TranslatedChat& chat, const ModelView& model) {
  JsonFields fields(chat.fields);
  using Kind = TranslatedChat::Kind;
  auto call = chat.kind == Kind::kChat   ? ReadChat(fields, &chat.tree, model)
              : chat.kind == Kind::kText ? ReadCompletion(fields, model, UINT32_MAX)
                                         : ReadInfill(fields, model);
  return WithItsNames(std::move(call), chat);
}

Result<OpenAiCall> WithItsNames(Result<OpenAiCall> call, const TranslatedChat& chat) {
  if (!call) return tl::unexpected(Named(std::move(call).error(), chat.names));
  GenerateRequest& request = call->requests.front();
  for (std::string& path : request.ignored) path = chat.names.Of(path);
  std::erase_if(request.ignored, [&](const std::string& path) {
    return std::ranges::find(chat.ignored, path) != chat.ignored.end();
  });
  request.ignored.insert(request.ignored.begin(), chat.ignored.begin(), chat.ignored.end());
  if (request.format && request.format->text) {
    std::string& field = request.format->text->field;
    field = chat.names.Of(field);
  }
  return call;
}

Result<size_t> CountTranslated(TranslatedChat& chat, const ModelView& model) {
  JsonFields fields(chat.fields);
  auto tokens = CountChatTokens(fields, &chat.tree, model);
  if (!tokens) return tl::unexpected(Named(std::move(tokens).error(), chat.names));
  return *tokens;
}

}  // namespace kvasir
