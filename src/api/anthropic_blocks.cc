#include "api/anthropic_blocks.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "base/result.h"

namespace kvasir {
namespace {

// The first block of `system` of Claude Code, for a gateway. Its text changes with each
// session, and all that follows it would be read again.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";
constexpr size_t kMaxTypeShown = 64;

// `known`: the types of blocks that may stand there.
Error UnknownBlock(const std::string& path, std::string_view type, std::string_view known) {
  return {Code::kUnsupported,
          fmt::format("\"{}\" is not supported: models read text; send blocks of type {}",
                      type.substr(0, kMaxTypeShown), known),
          path + ".type"};
}

Status CheckBlock(const JsonValue& block, const std::string& path) {
  if (block.is_object()) return {};
  return FailField(Code::kInvalidArgument, path, "is {}, not an object", KindOf(block));
}

}  // namespace

Result<std::string> ReadMark(JsonFields& fields) {
  const JsonValue* mark = fields.Find("cache_control");
  if (!mark) return std::string();
  JsonFields inner(*mark, "cache_control.");
  std::string_view type, ttl = "5m";
  inner.Text("type", &type);
  inner.Text("ttl", &ttl);
  if (inner.error() || type != "ephemeral" || (ttl != "5m" && ttl != "1h")) {
    fields.Fail("cache_control", R"(is not {"type": "ephemeral"}, with a ttl of "5m" or "1h")");
    return tl::unexpected(*fields.error());
  }
  fields.TakeUnread(inner);
  return std::string(ttl);
}

void AnthropicBlocks::LeaveOut(const std::string& path) { body_.TakeUnread(std::span(&path, 1)); }

Result<std::string> AnthropicBlocks::TextOfContent(const JsonValue& content,
                                                   const std::string& path) {
  if (content.is_string()) return std::string(content.text());
  if (!content.is_array()) {
    return FailField(Code::kInvalidArgument, path, "is {}, not a text or a list of blocks",
                     KindOf(content));
  }
  TranslatedMessage joined;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    KV_TRY(CheckBlock(content.items()[i], at));
    JsonFields block(content.items()[i], at + ".");
    KV_ASSIGN(const std::string_view type, NeededText(block, "type"));
    if (type != "text") return tl::unexpected(UnknownBlock(at, type, "text"));
    KV_ASSIGN(const std::string_view text, NeededText(block, "text"));
    joined.AddText(text);
    body_.TakeUnread(block);
  }
  return std::move(joined.text);
}

Status AnthropicBlocks::ReadSystem(const JsonValue& system) {
  Open open;
  open.message.role = "system";
  open.message.name.path = "system";
  if (!system.is_array()) {
    KV_ASSIGN(open.message.text, TextOfContent(system, "system"));
    open.has_blocks = true;
  }
  for (size_t i = 0; system.is_array() && i < system.size(); ++i) {
    const JsonValue& block = system.items()[i];
    const std::string path = fmt::format("system[{}]", i);
    const JsonValue* text = block.Find("text");
    if (text && text->is_string() && text->text().starts_with(kBillingHeader)) {
      LeaveOut(path);
      continue;
    }
    const JsonValue* type = block.Find("type");
    if (type && type->is_string() && type->text() != "text") {
      return tl::unexpected(UnknownBlock(path, type->text(), "text"));
    }
    KV_TRY(ReadBlock(block, path, &open));
  }
  if (open.has_blocks) Add(std::move(open));
  return {};
}

Status AnthropicBlocks::ReadMessages(const JsonValue* messages) {
  if (!messages || !messages->is_array() || messages->size() == 0) {
    return FailField(Code::kInvalidArgument, "messages",
                     "is {}, not a list with at least one message",
                     messages ? FoundText(*messages) : "missing");
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    KV_TRY(ReadMessage(messages->items()[i], fmt::format("messages[{}]", i)));
  }
  return {};
}

Status AnthropicBlocks::ReadMessage(const JsonValue& message, const std::string& path) {
  if (!message.is_object()) {
    return FailField(Code::kInvalidArgument, path, "is {}, not an object", KindOf(message));
  }
  JsonFields fields(message, path + ".");
  KV_ASSIGN(const std::string_view role, NeededText(fields, "role"));
  if (role != "user" && role != "assistant" && role != "system") {
    fields.Refuse("role", R"("user", "assistant" or "system")");
    return tl::unexpected(*fields.error());
  }
  Open open;
  open.message.role = role;
  open.message.name.path = path;
  const JsonValue* content = fields.Find("content");
  if (content && content->is_array()) {
    for (size_t i = 0; i < content->size(); ++i) {
      KV_TRY(ReadBlock(content->items()[i], fmt::format("{}.content[{}]", path, i), &open));
    }
  } else if (content && !content->is_string()) {
    return FailField(Code::kInvalidArgument, path + ".content",
                     "is {}, not a text or a list of blocks", KindOf(*content));
  } else {
    KV_ASSIGN(open.message.text, NeededText(fields, "content"));
  }
  open.has_blocks |= open.results.empty();
  body_.TakeUnread(fields);
  Add(std::move(open));
  return {};
}

Status AnthropicBlocks::ReadBlock(const JsonValue& block, const std::string& path, Open* open) {
  KV_TRY(CheckBlock(block, path));
  JsonFields fields(block, path + ".");
  KV_ASSIGN(const std::string_view type, NeededText(fields, "type"));
  const std::string& role = open->message.role;
  if (type == "text") {
    KV_ASSIGN(const std::string_view text, NeededText(fields, "text"));
    open->message.AddText(text);
    open->has_blocks = true;
  } else if (type == "thinking" && role == "assistant") {
    KV_ASSIGN(const std::string_view thought, NeededText(fields, "thinking"));
    fields.Find("signature");  // any: it proves nothing here
    std::string& all = open->message.thought;
    all.append(all.empty() ? "" : "\n").append(thought);
    if (open->message.name.thought.empty()) open->message.name.thought = path;
    open->has_blocks = true;
  } else if (type == "redacted_thinking" && role == "assistant") {
    LeaveOut(path);  // only its makers can read it
    return {};
  } else if (type == "tool_use" && role == "assistant") {
    KV_TRY(ReadCall(fields, path, open));
  } else if (type == "tool_result" && role == "user") {
    KV_TRY(ReadResult(fields, path, open));
  } else {
    const std::string_view known = role == "assistant" ? "text, thinking or tool_use"
                                   : role == "user"    ? "text or tool_result"
                                                       : "text";
    return tl::unexpected(UnknownBlock(path, type, known));
  }
  KV_ASSIGN(std::string mark, ReadMark(fields));
  if (!mark.empty()) open->mark = std::move(mark);
  body_.TakeUnread(fields);
  return {};
}

Status AnthropicBlocks::ReadCall(JsonFields& block, const std::string& path, Open* open) {
  KV_ASSIGN(const std::string_view id, NeededText(block, "id"));
  KV_ASSIGN(const std::string_view name, NeededText(block, "name"));
  const JsonValue* input = block.Find("input");
  if (!input || !input->is_object()) {
    return FailField(Code::kInvalidArgument, path + ".input", "is {}, not an object",
                     input ? KindOf(*input) : "missing");
  }
  // "direct" is the model itself, as without it.
  if (const JsonValue* caller = block.Find("caller")) {
    JsonFields inner(*caller, path + ".caller.");
    std::string_view type;
    inner.Text("type", &type);
    if (type == "direct") {
      body_.TakeUnread(inner);
    } else {
      LeaveOut(path + ".caller");
    }
  }
  calls_.emplace(id);
  open->message.calls.push_back(builder_.Call(id, name, *input));
  open->message.name.calls.push_back(path);
  open->has_blocks = true;
  return {};
}

Status AnthropicBlocks::ReadResult(JsonFields& block, const std::string& path, Open* open) {
  KV_ASSIGN(const std::string_view id, NeededText(block, "tool_use_id"));
  if (!calls_.contains(id)) {
    return FailField(Code::kInvalidArgument, path + ".tool_use_id",
                     "no tool_use before it has this id");
  }
  TranslatedMessage& result = open->results.emplace_back();
  result.role = "tool";
  result.call_id = id;
  result.name.path = path;
  if (const JsonValue* content = block.Find("content")) {
    KV_ASSIGN(result.text, TextOfContent(*content, path + ".content"));
  }
  return {};
}

void AnthropicBlocks::Add(Open open) {
  size_t index = 0;
  for (TranslatedMessage& result : open.results) index = builder_.Add(std::move(result));
  if (open.has_blocks) index = builder_.Add(std::move(open.message));
  if (!open.mark.empty()) builder_.Mark(index, open.mark);
}

}  // namespace kvasir
