#include "api/responses_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "api/cache_marks.h"
#include "api/session_body.h"
#include "api/stored_response.h"
#include "base/base64.h"
#include "base/result.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr std::string_view kTextParts[] = {"input_text", "output_text",    "text",
                                           "refusal",    "reasoning_text", "summary_text"};

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

void ResponsesItems::Add(std::string_view role, TranslatedMessage message,
                         const std::string& path) {
  EndTurn();
  message.role = role == "developer" && !model_.knows_developer ? "system" : role;
  message.name.path = path;
  builder_.Add(std::move(message));
}

JsonValue ResponsesItems::End(ChatNames* names) {
  EndTurn();
  return builder_.End(names);
}

Status ResponsesItems::ReadMark(JsonFields& fields, const std::string& path,
                                TranslatedMessage* to) {
  const JsonValue* mark = fields.Find(kBreakpoint);
  if (!mark) return {};
  KV_ASSIGN(const auto time, TimeOfMark(*mark, fmt::format("{}.{}", path, kBreakpoint)));
  ListUnknown(*mark, std::string(kBreakpoint), fields);
  if (!time) return {};
  // The chat's mark has the time alone, so that its reader does not list the rest again.
  const JsonValue* ttl = mark->is_object() ? mark->Find("ttl") : nullptr;
  to->mark = ttl ? tree_->Object({{"ttl", *ttl}}) : JsonValue(true);
  return {};
}

Status ResponsesItems::ReadContent(const JsonValue* content, const std::string& path,
                                   TranslatedMessage* to) {
  if (content && content->is_string()) {
    to->AddText(content->text());
    return {};
  }
  if (!content || !content->is_array()) {
    return FailField(Code::kInvalidArgument, path, "is {}, not a text or a list of parts",
                     content ? KindOf(*content) : "missing");
  }
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    JsonFields part(content->items()[i], at + ".");
    KV_ASSIGN(const std::string_view type, NeededText(part, "type"));
    if (std::ranges::find(kTextParts, type) == std::end(kTextParts)) {
      return FailField(Code::kUnsupported, at + ".type",
                       "\"{}\" is not supported: models read text; send parts of type input_text",
                       type.substr(0, 64));
    }
    KV_ASSIGN(const std::string_view text,
              NeededText(part, type == "refusal" ? "refusal" : "text"));
    part.Find("annotations"), part.Find("logprobs");  // of an answer that comes back
    KV_TRY(ReadMark(part, at, to));
    to->AddText(text);
    body_.TakeUnread(part);
  }
  return {};
}

Status ResponsesItems::AddPrevious(const SessionState& previous) {
  const std::string path = "previous_response_id";
  for (size_t i = 0; i < previous.messages.size(); ++i) {
    const SessionMessage& message = *previous.messages[i];
    if (i == 0 && message.is_system()) {
      if (message.content.empty()) continue;
      auto rest = WithoutInstructions(message);
      if (rest != message.content) {
        if (rest) Add(message.role, {.text = std::move(*rest)}, path);
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
  TranslatedMessage message;
  KV_TRY(ReadContent(&instructions, "instructions", &message));
  std::string text = message.text;
  if (!text.empty()) Add("system", std::move(message), "instructions");
  return text;
}

Status ResponsesItems::ReadInput(const JsonValue* input) {
  if (input && input->is_string()) {
    Add("user", {.text = std::string(input->text())}, "input");
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
  KV_ASSIGN(const std::string_view role, NeededText(item, "role"));
  if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
    item.Refuse("role", R"("user", "assistant", "system" or "developer")");
    return tl::unexpected(*item.error());
  }
  item.Find("phase");  // of an answer that comes back
  TranslatedMessage own;
  TranslatedMessage& message = role == "assistant" ? Turn(path) : own;
  KV_TRY(ReadContent(item.Find("content"), path + ".content", &message));
  KV_TRY(ReadMark(item, path, &message));
  if (role != "assistant") Add(role, std::move(own), path);
  return {};
}

Status ResponsesItems::ReadCall(JsonFields& item, const std::string& path) {
  KV_ASSIGN(const std::string_view id, NeededText(item, "call_id"));
  KV_ASSIGN(const std::string_view name, NeededText(item, "name"));
  KV_ASSIGN(const std::string_view arguments, NeededText(item, "arguments"));
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
  KV_ASSIGN(const std::string_view id, NeededText(item, "call_id"));
  if (!calls_.contains(id)) {
    return FailField(Code::kInvalidArgument, path + ".call_id",
                     "no function_call before it has this id");
  }
  EndTurn();
  TranslatedMessage result;
  result.role = "tool";
  result.call_id = id;
  result.name.path = path;
  KV_TRY(ReadContent(item.Find("output"), path + ".output", &result));
  builder_.Add(std::move(result));
  return {};
}

// Reads a thought in its text, or in base64, which some clients send back alone. That of another
// server, which is encrypted, is left out.
Status ResponsesItems::ReadThought(JsonFields& item, const std::string& path) {
  const JsonValue* summary = item.Find("summary");
  TranslatedMessage read;
  std::string& text = read.text;
  const JsonValue* content = item.Find("content");
  std::string_view encoded;
  item.Text("encrypted_content", &encoded);
  if (item.error()) return tl::unexpected(*item.error());
  const bool is_list = content && (content->is_array() || content->is_string());
  if (content && (content->size() > 0 || !is_list)) {
    KV_TRY(ReadContent(content, path + ".content", &read));
  } else {
    auto decoded = DecodeBase64(encoded);
    if (!decoded || decoded->empty() || FirstInvalidUtf8(*decoded) < decoded->size()) {
      LeaveOut(path);
      return {};
    }
    text = std::move(*decoded);
  }
  // Answers of this server have an empty one: it says nothing that the content does not.
  for (size_t i = 0; summary && summary->is_array() && i < summary->size(); ++i) {
    LeaveOut(fmt::format("{}.summary[{}]", path, i));
  }
  if (summary && !summary->is_array()) LeaveOut(path + ".summary");
  TranslatedMessage& turn = Turn(path);
  turn.thought.append(turn.thought.empty() ? "" : "\n").append(text);
  if (turn.name.thought.empty()) turn.name.thought = path;
  return {};
}

}  // namespace kvasir
