#include "chat/tool_call.h"

#include <algorithm>

#include "base/ascii.h"
#include "base/json_tree.h"
#include "base/json_writer.h"

namespace kvasir {
namespace {

const ToolSpec* FindTool(std::string_view name, const std::vector<ToolSpec>& tools) {
  const auto found = std::ranges::find(tools, name, &ToolSpec::name);
  return found == tools.end() ? nullptr : &*found;
}

bool IsJsonObject(std::string_view text) {
  JsonTree tree;
  const auto value = tree.Parse(text);
  return value && value->is_object();
}

// Returns the text of a member's value in the text of an object, whose keys have no escapes; "" if
// it is missing. REQUIRES: valid JSON.
std::string_view MemberText(std::string_view object, std::string_view wanted) {
  std::string_view found, key;
  size_t depth = 0, begin = 0;
  bool in_value = false;
  for (size_t i = 0; i < object.size(); ++i) {
    const char c = object[i];
    if (c == '"') {
      const size_t first = i + 1;
      for (++i; object[i] != '"'; ++i) i += object[i] == '\\' ? 1 : 0;
      if (depth == 1 && !in_value) key = object.substr(first, i - first);
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (depth == 1 && c == ':') {
      in_value = true;
      begin = i + 1;
    } else if (c == ',' || c == '}' || c == ']') {
      if (depth == 1 && in_value && key == wanted) found = Trimmed(object.substr(begin, i - begin));
      if (depth == 1) in_value = false;
      if (c != ',') --depth;
    }
  }
  return found;
}

// Returns the value of an XML parameter as JSON.
std::string ParameterJson(std::string_view text, bool is_text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (is_text) return Quoted(text);
  // Templates write what is not an object or a list as Python does.
  const std::string_view trimmed = Trimmed(text);
  if (trimmed == "True") return "true";
  if (trimmed == "False") return "false";
  if (trimmed == "None") return "null";
  JsonTree tree;
  return tree.Parse(trimmed) ? std::string(trimmed) : Quoted(text);
}

// Returns the first of the marks from `first` on before which the text from `begin` is JSON, in
// whose strings a mark may stand; `first`, if none is. Tries few.
size_t EndOfJson(std::string_view text, size_t begin, size_t first, std::string_view mark) {
  constexpr int kMaxTries = 64;
  size_t end = first;
  for (int i = 0; i < kMaxTries && end != text.npos; ++i) {
    JsonTree tree;
    if (tree.Parse(Trimmed(text.substr(begin, end - begin)))) return end;
    end = text.find(mark, end + mark.size());
  }
  return first;
}

}  // namespace

std::optional<ToolCall> ReadJsonCall(std::string_view object, bool needs_arguments,
                                     const std::vector<ToolSpec>& tools) {
  JsonTree tree;
  const auto value = tree.Parse(object);
  const JsonValue* name = value ? value->Find("name") : nullptr;
  if (!name || !name->is_string() || !FindTool(name->text(), tools)) return std::nullopt;
  ToolCall call{.name = std::string(name->text()), .arguments = "{}", .id = ""};
  const JsonValue* id = value->Find("id");
  if (id && id->is_string()) call.id = id->text();
  const char* key = value->Find("arguments") ? "arguments" : "parameters";
  const JsonValue* arguments = value->Find(key);
  if (!arguments || arguments->is_null()) {
    return needs_arguments ? std::nullopt : std::optional(std::move(call));
  }
  if (arguments->is_string()) {  // JSON inside of JSON
    call.arguments = arguments->text();
  } else {
    call.arguments = MemberText(object, key);
  }
  return IsJsonObject(call.arguments) ? std::optional(std::move(call)) : std::nullopt;
}

std::optional<ToolCall> ReadNamedCall(CallBody body, std::string_view header,
                                      std::string_view arguments,
                                      const std::vector<ToolSpec>& tools) {
  std::string_view name = Trimmed(header), id;
  if (body == CallBody::kDeepSeek) {
    if (!name.starts_with(kDeepSeekCall)) return std::nullopt;
    name.remove_prefix(kDeepSeekCall.size());
    const size_t separator = name.find(kDeepSeekSeparator);
    if (separator == name.npos) return std::nullopt;
    std::string_view right = Trimmed(name.substr(separator + kDeepSeekSeparator.size()));
    name = Trimmed(name.substr(0, separator));
    if (!right.empty()) {  // function<sep>NAME, then a block of ```json
      if (!right.ends_with("```json")) return std::nullopt;
      right.remove_suffix(7);
      name = Trimmed(right);
    }
  } else {
    if (name.ends_with(kArgsMark)) name = Trimmed(name.substr(0, name.size() - kArgsMark.size()));
    if (const size_t at = name.find(kCallIdMark); at != name.npos) {
      id = Trimmed(name.substr(at + kCallIdMark.size()));
      name = Trimmed(name.substr(0, at));
    }
  }
  if (!FindTool(name, tools) || !IsJsonObject(arguments)) return std::nullopt;
  return ToolCall{std::string(name), std::string(arguments), std::string(id)};
}

std::optional<ToolCall> ReadXmlCall(std::string_view text, const std::vector<ToolSpec>& tools) {
  constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
  constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";
  if (!text.starts_with(kFunction) || !text.ends_with(kFunctionEnd)) return std::nullopt;
  text = text.substr(kFunction.size(), text.size() - kFunction.size() - kFunctionEnd.size());
  const size_t name_end = text.find('>');
  const ToolSpec* tool = FindTool(Trimmed(text.substr(0, name_end)), tools);
  if (name_end == text.npos || !tool) return std::nullopt;
  ToolCall call{tool->name, "{", ""};
  text.remove_prefix(name_end + 1);
  std::vector<std::string_view> keys;
  for (text = Trimmed(text); !text.empty(); text = Trimmed(text)) {
    const size_t key_end = text.find('>');
    size_t end = text.find(kParameterEnd);
    if (!text.starts_with(kParameter) || key_end > end || end == text.npos) return std::nullopt;
    const std::string_view key = text.substr(kParameter.size(), key_end - kParameter.size());
    if (std::ranges::find(keys, key) != keys.end()) return std::nullopt;
    keys.push_back(key);
    const auto& texts = tool->text_parameters;
    const bool is_text = std::ranges::find(texts, key) != texts.end();
    if (!is_text) end = EndOfJson(text, key_end + 1, end, kParameterEnd);
    if (call.arguments.size() > 1) call.arguments += ", ";
    call.arguments +=
        Quoted(key) + ": " + ParameterJson(text.substr(key_end + 1, end - key_end - 1), is_text);
    text.remove_prefix(end + kParameterEnd.size());
  }
  call.arguments += '}';
  return call;
}

}  // namespace kvasir
