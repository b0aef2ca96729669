#include "api/responses_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "api/session_body.h"
#include "api/stored_response.h"
#include "base/base64.h"
#include "base/result.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr std::string_view kTextParts[] = {"input_text", "output_text",    "text",
                                           "refusal",    "reasoning_text", "summary_text"};

Result<std::string_view> ItemText(JsonFields& item, std::string_view name) {
  std::string_view text;
  item.Text(name, &text);
  if (!item.Has(name)) item.Fail(name, "is missing, where a text must be");
  if (item.error()) return tl::unexpected(*item.error());
  return text;
}

}  // namespace

void ResponsesItems::LeaveOut(const std::string& path) { body_.TakeUnread(std::span(&path, 1)); }

TranslatedMessage& ResponsesItems::Turn(const std::string& path) {
  if (!turn_) {
    turn_.emplace();
    turn_->role = "assistant";
    turn_->name.path = path;
  }
  return *turn_;
}

void ResponsesItems::EndTurn() {
  if (turn_) builder_.Add(*std::exchange(turn_, std::nullopt));
}

void ResponsesItems::Add(std::string_view role, std::string text, const std::string& path) {
  EndTurn();
  TranslatedMessage message;
  message.role = role == "developer" && !model_.knows_developer ? "system" : role;
  message.text = std::move(text);
  message.name.path = path;
  builder_.Add(std::move(message));
}

JsonValue ResponsesItems::End(ChatNames* names) {
  EndTurn();
  return builder_.End(names);
}

Result<std::string> ResponsesItems::TextOfParts(const JsonValue* content, const std::string& path) {
  if (content && content->is_string()) return std::string(content->text());
  if (!content || !content->is_array()) {
    return FailField(Code::kInvalidArgument, path, "is {}, not a text or a list of parts",
                     content ? KindOf(*content) : "missing");
  }
  TranslatedMessage joined;
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    JsonFields part(content->items()[i], at + ".");
    KV_ASSIGN(const std::string_view type, ItemText(part, "type"));
    if (std::ranges::find(kTextParts, type) == std::end(kTextParts)) {
      return FailField(Code::kUnsupported, at + ".type",
                       "\"{}\" is not supported: models read text; send parts of type input_text",
                       type.substr(0, 64));
    }
    KV_ASSIGN(const std::string_view text, ItemText(part, type == "refusal" ? "refusal" : "text"));
    part.Find("annotations"), part.Find("logprobs");  // of an answer that comes back
    joined.AddText(text);
    body_.TakeUnread(part);
  }
  return std::move(joined.text);
}

Status ResponsesItems::AddPrevious(const SessionState& previous) {
  const std::string path = "previous_response_id";
  for (size_t i = 0; i < previous.messages.size(); ++i) {
    const SessionMessage& message = *previous.messages[i];
    if (i == 0 && message.is_system()) {
      if (message.content.empty()) continue;
      auto rest = WithoutInstructions(message);
      if (rest != message.content) {
        if (rest) Add(message.role, std::move(*rest), path);
        continue;
      }
    }
    KV_ASSIGN(const JsonValue whole, JsonOf(message, tree_));
    if (const JsonValue* calls = whole.Find("tool_calls")) {
      for (const JsonValue& call : calls->items()) {
        if (const JsonValue* id = call.Find("id")) calls_.emplace(id->text());
      }
    }
    builder_.AddKept(whole, {.path = path, .thought = path, .calls = {}, .kept = i});
  }
  return {};
}

Result<std::string> ResponsesItems::ReadInstructions(const JsonValue& instructions) {
  KV_ASSIGN(std::string text, TextOfParts(&instructions, "instructions"));
  Add("system", text, "instructions");
  return text;
}

Status ResponsesItems::ReadInput(const JsonValue* input) {
  if (input && input->is_string()) {
    Add("user", std::string(input->text()), "input");
    return {};
  }
  if (!input || !input->is_array() || input->size() == 0) {
    return FailField(Code::kInvalidArgument, "input",
                     "is {}, not a text or a list with at least one item",
                     !input              ? "missing"
                     : input->is_array() ? "empty"
                                         : KindOf(*input));
  }
  for (size_t i = 0; i < input->size(); ++i) {
    KV_TRY(ReadItem(input->items()[i], fmt::format("input[{}]", i)));
  }
  return {};
}

Status ResponsesItems::ReadItem(const JsonValue& item, const std::string& path) {
  if (!item.is_object()) {
    return FailField(Code::kInvalidArgument, path, "is {}, not an object", KindOf(item));
  }
  JsonFields fields(item, path + ".");
  std::string_view type = "message";
  fields.Text("type", &type);
  if (fields.error()) return tl::unexpected(*fields.error());
  fields.Find("id"), fields.Find("status");  // of an answer that comes back
  Status read;
  if (type == "message") {
    read = ReadMessage(fields, path);
  } else if (type == "function_call") {
    read = ReadCall(fields, path);
  } else if (type == "function_call_output") {
    read = ReadResult(fields, path);
  } else if (type == "reasoning") {
    read = ReadThought(fields, path);
  } else if (type == "item_reference") {
    return FailField(Code::kUnsupported, path + ".type",
                     "item_reference is not supported in this version: send the item itself");
  } else {
    return FailField(Code::kUnsupported, path + ".type",
                     "\"{}\" is not supported; send items of type message, function_call, "
                     "function_call_output or reasoning",
                     type.substr(0, 64));
  }
  KV_TRY(read);
  body_.TakeUnread(fields);
  return {};
}

Status ResponsesItems::ReadMessage(JsonFields& item, const std::string& path) {
  KV_ASSIGN(const std::string_view role, ItemText(item, "role"));
  if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
    item.Fail("role", "is not \"user\", \"assistant\", \"system\" or \"developer\"");
    return tl::unexpected(*item.error());
  }
  item.Find("phase");  // of an answer that comes back
  KV_ASSIGN(std::string text, TextOfParts(item.Find("content"), path + ".content"));
  if (role == "assistant") {
    Turn(path).AddText(text);
  } else {
    Add(role, std::move(text), path);
  }
  return {};
}

Status ResponsesItems::ReadCall(JsonFields& item, const std::string& path) {
  KV_ASSIGN(const std::string_view id, ItemText(item, "call_id"));
  KV_ASSIGN(const std::string_view name, ItemText(item, "name"));
  KV_ASSIGN(const std::string_view arguments, ItemText(item, "arguments"));
  calls_.emplace(id);
  TranslatedMessage& turn = Turn(path);
  turn.calls.push_back(tree_->Object(
      {{"id", tree_->String(id)},
       {"type", tree_->String("function")},
       {"function",
        tree_->Object({{"name", tree_->String(name)}, {"arguments", tree_->String(arguments)}})}}));
  turn.name.calls.push_back(path);
  return {};
}

Status ResponsesItems::ReadResult(JsonFields& item, const std::string& path) {
  KV_ASSIGN(const std::string_view id, ItemText(item, "call_id"));
  if (!calls_.contains(id)) {
    return FailField(Code::kInvalidArgument, path + ".call_id",
                     "no function_call before it has this id");
  }
  EndTurn();
  TranslatedMessage result;
  result.role = "tool";
  result.call_id = id;
  result.name.path = path;
  KV_ASSIGN(result.text, TextOfParts(item.Find("output"), path + ".output"));
  builder_.Add(std::move(result));
  return {};
}

// A thought in its text, or in base64, which some clients send back alone. That of another server,
// which is encrypted, is left out.
Status ResponsesItems::ReadThought(JsonFields& item, const std::string& path) {
  item.Find("summary");  // of the content
  std::string text;
  const JsonValue* content = item.Find("content");
  std::string_view encoded;
  item.Text("encrypted_content", &encoded);
  if (item.error()) return tl::unexpected(*item.error());
  if (content && content->size() > 0) {
    KV_ASSIGN(text, TextOfParts(content, path + ".content"));
  } else {
    auto decoded = DecodeBase64(encoded);
    if (!decoded || decoded->empty() || FirstInvalidUtf8(*decoded) < decoded->size()) {
      LeaveOut(path);
      return {};
    }
    text = std::move(*decoded);
  }
  TranslatedMessage& turn = Turn(path);
  turn.thought.append(turn.thought.empty() ? "" : "\n").append(text);
  if (turn.name.thought.empty()) turn.name.thought = path;
  return {};
}

}  // namespace kvasir
