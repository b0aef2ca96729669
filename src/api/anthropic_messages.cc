#include "api/anthropic_messages.h"

#include <fmt/format.h>

#include <string_view>

#include "base/result.h"
#include "http/json_body.h"

namespace kvasir {
namespace {

Result<std::string_view> TextAt(const JsonValue& object, const char* name, const std::string& at) {
  const JsonValue* value = object.Find(name);
  if (value && value->is_string()) return value->text();
  return FailField(Code::kInvalidArgument, at + "." + name, "{}, where a text must be",
                   value ? fmt::format("is {}", KindOf(*value)) : "is missing");
}

// A text, or the texts of blocks of type text, joined.
Result<std::string> TextOfBlocks(const JsonValue& content, const std::string& at) {
  if (content.is_string()) return std::string(content.text());
  if (!content.is_array()) {
    return FailField(Code::kInvalidArgument, at, "is {}, not a text or a list of blocks",
                     KindOf(content));
  }
  std::string joined;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", at, i);
    KV_ASSIGN(const std::string_view type, TextAt(content.items()[i], "type", place));
    if (type != "text") {
      return FailField(Code::kUnsupported, place, "blocks of type \"{}\" are not available here",
                       type.substr(0, 64));
    }
    KV_ASSIGN(const std::string_view text, TextAt(content.items()[i], "text", place));
    joined += text;
  }
  return joined;
}

// Writes the messages of one message: its texts, thoughts and calls are one, and each result of a
// tool is a separate one.
class MessageWriter {
 public:
  MessageWriter(std::string_view role, std::string* out) : role_(role), out_(out) {}

  Status Block(const JsonValue& block, const std::string& at) {
    KV_ASSIGN(const std::string_view type, TextAt(block, "type", at));
    if (type == "text") return Append(block, "text", at, &text_);
    if (type == "thinking") return Append(block, "thinking", at, &thought_);
    if (type == "redacted_thinking") return {};  // only its makers can read it
    if (type == "tool_use") return Call(block, at);
    if (type == "tool_result") return ToolResult(block, at);
    return FailField(Code::kUnsupported, at,
                     "blocks of type \"{}\" are not available: models read text",
                     type.substr(0, 64));
  }
  void Say(std::string_view text) {
    text_ += text;
    has_any_ = true;
  }

  void End() {
    if (!has_any_) return;
    Begin();
    *out_ += fmt::format(R"({{"role":{},"content":{})", Quoted(role_), Quoted(text_));
    if (!thought_.empty()) *out_ += ",\"reasoning_content\":" + Quoted(thought_);
    if (!calls_.empty()) *out_ += ",\"tool_calls\":[" + calls_ + "]";
    *out_ += '}';
    text_.clear(), thought_.clear(), calls_.clear();
    has_any_ = false;
  }

 private:
  void Begin() {
    if (out_->back() != '[') *out_ += ',';
  }

  Status Append(const JsonValue& block, const char* name, const std::string& at,
                std::string* text) {
    KV_ASSIGN(const std::string_view more, TextAt(block, name, at));
    *text += more;
    has_any_ = true;
    return {};
  }

  Status Call(const JsonValue& block, const std::string& at) {
    KV_ASSIGN(const std::string_view name, TextAt(block, "name", at));
    KV_ASSIGN(const std::string_view id, TextAt(block, "id", at));
    const JsonValue* input = block.Find("input");
    if (!input || !input->is_object()) {
      return FailField(Code::kInvalidArgument, at + ".input", "is not an object");
    }
    calls_ +=
        fmt::format(R"({}{{"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}})",
                    calls_.empty() ? "" : ",", Quoted(id), Quoted(name), Quoted(TextOf(*input)));
    has_any_ = true;
    return {};
  }

  Status ToolResult(const JsonValue& block, const std::string& at) {
    KV_ASSIGN(const std::string_view id, TextAt(block, "tool_use_id", at));
    const JsonValue* content = block.Find("content");
    std::string text;
    if (content && !content->is_null()) {
      KV_ASSIGN(text, TextOfBlocks(*content, at + ".content"));
    }
    End();
    Begin();
    *out_ += fmt::format(R"({{"role":"tool","tool_call_id":{},"content":{}}})", Quoted(id),
                         Quoted(text));
    return {};
  }

  const std::string_view role_;
  std::string* const out_;
  std::string text_, thought_, calls_;
  bool has_any_ = false;
};

Status WriteMessage(const JsonValue& message, const std::string& at, std::string* out) {
  KV_ASSIGN(const std::string_view role, TextAt(message, "role", at));
  if (role != "user" && role != "assistant") {
    return FailField(Code::kInvalidArgument, at + ".role", "is not \"user\" or \"assistant\"");
  }
  const JsonValue* content = message.Find("content");
  MessageWriter writer(role, out);
  if (content && content->is_array()) {
    for (size_t i = 0; i < content->size(); ++i) {
      KV_TRY(writer.Block(content->items()[i], fmt::format("{}.content[{}]", at, i)));
    }
  } else {
    KV_ASSIGN(const std::string_view text, TextAt(message, "content", at));
    writer.Say(text);
  }
  writer.End();
  return {};
}

}  // namespace

Result<std::string> ChatBodyOf(const JsonValue& body) {
  std::string out = "{\"messages\":[";
  const JsonValue* system = body.Find("system");
  if (system && !system->is_null()) {
    KV_ASSIGN(const std::string text, TextOfBlocks(*system, "system"));
    out += fmt::format(R"({{"role":"system","content":{}}})", Quoted(text));
  }
  const JsonValue* messages = body.Find("messages");
  if (!messages || !messages->is_array() || messages->size() == 0) {
    return FailField(Code::kInvalidArgument, "messages", "is not a list of messages");
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    KV_TRY(WriteMessage(messages->items()[i], fmt::format("messages[{}]", i), &out));
  }
  out += ']';
  const JsonValue* tools = body.Find("tools");
  if (tools && !tools->is_null()) {
    if (!tools->is_array()) {
      return FailField(Code::kInvalidArgument, "tools", "is not a list of tools");
    }
    out += ",\"tools\":[";
    for (size_t i = 0; i < tools->size(); ++i) {
      const JsonValue& tool = tools->items()[i];
      KV_ASSIGN(const std::string_view name, TextAt(tool, "name", fmt::format("tools[{}]", i)));
      out += fmt::format(R"({}{{"type":"function","function":{{"name":{})", i == 0 ? "" : ",",
                         Quoted(name));
      const std::pair<const char*, const char*> parts[] = {{"description", "description"},
                                                           {"input_schema", "parameters"}};
      for (const auto& [theirs, ours] : parts) {
        const JsonValue* value = tool.Find(theirs);
        if (value && !value->is_null()) out += fmt::format(",\"{}\":{}", ours, TextOf(*value));
      }
      out += "}}";
    }
    out += ']';
  }
  return out + "}";
}

}  // namespace kvasir
