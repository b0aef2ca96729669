#include "jinja/input.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "base/chat_roles.h"
#include "base/result.h"

namespace kvasir::jinja {
namespace {

constexpr uint32_t kMaxDepth = 100;

Result<Value> Convert(const JsonValue& data, Origin origin, uint32_t depth) {
  using Kind = JsonValue::Kind;
  if (depth > kMaxDepth)
    return Fail(Code::kInvalidArgument, "data is nested more than {} deep", kMaxDepth);
  switch (data.kind()) {
    case Kind::kNull:
      return Value(None{}, origin);
    case Kind::kBool:
      return Value(data.boolean(), origin);
    case Kind::kInteger:
      return FromInt(data.integer(), origin);
    case Kind::kUnsigned:
    case Kind::kDigits:
      return Value(
          BigInteger{std::make_shared<const std::string>(data.integer_text()), data.number()},
          origin);
    case Kind::kFloat:
      return Value(data.number(), origin);
    case Kind::kString:
      return FromString(data.text(), origin);
    case Kind::kIds: {
      std::vector<Value> items;
      items.reserve(data.size());
      for (const int32_t id : data.ids()) items.push_back(FromInt(id, origin));
      return FromItems(std::move(items)).WithOrigin(origin);
    }
    case Kind::kArray: {
      std::vector<Value> items;
      items.reserve(data.size());
      for (const JsonValue& item : data.items()) {
        KV_ASSIGN(Value value, Convert(item, origin, depth + 1));
        items.push_back(std::move(value));
      }
      return FromItems(std::move(items)).WithOrigin(origin);
    }
    case Kind::kObject: {
      Dict dict;
      dict.Reserve(data.size());
      for (const auto& [key, item] : data.members()) {
        KV_ASSIGN(Value value, Convert(item, origin, depth + 1));
        dict.Append(FromString(key, origin), std::move(value));
      }
      return FromDict(std::move(dict), origin);
    }
  }
  return Value(None{}, origin);
}

using PartKind = ChatPart::Kind;

// Tells whether a value says nothing and need not be shown: a blank text, an object without
// members.
bool SaysNothing(const JsonValue& value) {
  if (value.is_string()) return IsBlank(value.text()) || value.text() == "{}";
  return value.is_null() || value.size() == 0;
}

// Returns whether another member of a message says something: all but which call a result is of.
bool IsPart(std::string_view key, const JsonValue& item) {
  if (key == "role" || key == "content" || key == "tool_call_id") return false;
  if (item.is_bool()) return item.boolean();
  return item.is_number() || !SaysNothing(item);
}

// Returns the origin of a part: with a new number if it says something.
Origin OriginOf(PartKind kind, const JsonValue& said, Origin origin, uint32_t call,
                std::vector<ChatPart>* parts) {
  if (SaysNothing(said)) return origin;
  parts->push_back({.kind = kind, .message = *origin.message, .call = call});
  origin.part = static_cast<uint32_t>(parts->size());
  return origin;
}

// Converts a member of a call, or of the function that it calls.
Result<Value> ConvertCallMember(const JsonValue::Member& member, Origin origin, uint32_t call,
                                uint32_t depth, std::vector<ChatPart>* parts) {
  if (member.key == "name")
    origin = OriginOf(PartKind::kCallName, member.value, origin, call, parts);
  if (member.key == "arguments") {
    origin = OriginOf(PartKind::kCallArguments, member.value, origin, call, parts);
  }
  return Convert(member.value, origin, depth);
}

Result<Value> ConvertCall(const JsonValue& call, Origin origin, uint32_t index,
                          std::vector<ChatPart>* parts) {
  if (!call.is_object()) return Convert(call, origin, 3);
  Dict dict;
  dict.Reserve(call.size());
  for (const JsonValue::Member& member : call.members()) {
    Value value;
    if (member.key == "function" && member.value.is_object()) {
      Dict function;
      function.Reserve(member.value.size());
      for (const JsonValue::Member& inner : member.value.members()) {
        KV_ASSIGN(Value made, ConvertCallMember(inner, origin, index, 5, parts));
        function.Append(FromString(inner.key, origin), std::move(made));
      }
      value = FromDict(std::move(function), origin);
    } else {
      KV_ASSIGN(value, Convert(member.value, origin, 4));
    }
    dict.Append(FromString(member.key, origin), std::move(value));
  }
  return FromDict(std::move(dict), origin);
}

Result<Value> ConvertCalls(const JsonValue& calls, Origin origin, std::vector<ChatPart>* parts) {
  if (!calls.is_array()) return Convert(calls, origin, 2);
  std::vector<Value> items;
  items.reserve(calls.size());
  for (const JsonValue& call : calls.items()) {
    KV_ASSIGN(Value value, ConvertCall(call, origin, static_cast<uint32_t>(items.size()), parts));
    items.push_back(std::move(value));
  }
  return FromItems(std::move(items)).WithOrigin(origin);
}

// Makes the list whose only part is this text.
Value PartsOf(Value text, Origin origin) {
  const Origin own{origin.message, /*input=*/false};
  Dict part;
  part.Append(FromString("type", own), FromString("text", own));
  part.Append(FromString("text", own), std::move(text));
  std::vector<Value> items;
  items.push_back(FromDict(std::move(part), origin));
  return FromItems(std::move(items)).WithOrigin(origin);
}

Result<Value> ConvertMember(std::string_view key, const JsonValue& item, Origin origin,
                            ContentForm form, std::vector<ChatPart>* parts) {
  if (key == "role" && item.is_string() && IsChatRole(item.text())) {
    return FromString(item.text(), Origin{origin.message, /*input=*/false});
  }
  if (key == "tool_calls") return ConvertCalls(item, origin, parts);
  if (item.is_string() && key == "content") {
    origin = OriginOf(PartKind::kContent, item, origin, 0, parts);
    if (form == ContentForm::kParts) return PartsOf(FromString(item.text(), origin), origin);
  } else if (item.is_string() && key == "reasoning_content") {
    origin = OriginOf(PartKind::kReasoning, item, origin, 0, parts);
  } else if (item.is_string() && key == "refusal") {
    origin = OriginOf(PartKind::kRefusal, item, origin, 0, parts);
  } else if (IsPart(key, item)) {
    parts->push_back(
        {.kind = PartKind::kMember, .message = *origin.message, .member = std::string(key)});
    origin.part = static_cast<uint32_t>(parts->size());
  }
  return Convert(item, origin, 2);
}

Result<Value> ConvertMessage(const JsonValue& message, Origin origin, ContentForm form,
                             std::vector<ChatPart>* parts) {
  if (!message.is_object()) return Convert(message, origin, 1);
  const size_t first = parts->size();
  Dict dict;
  dict.Reserve(message.size());
  for (const auto& [key, item] : message.members()) {
    KV_ASSIGN(Value value, ConvertMember(key, item, origin, form, parts));
    dict.Append(FromString(key, origin), std::move(value));
  }
  ChatPart* said = nullptr;
  size_t num_said = 0;
  for (ChatPart& part : std::span(*parts).subspan(first)) {
    if (part.kind == PartKind::kMember) continue;
    said = &part;
    ++num_said;
  }
  if (num_said == 1) said->is_alone = true;
  return FromDict(std::move(dict), origin);
}

}  // namespace

Result<Value> FromJson(const JsonValue& data, Origin origin) { return Convert(data, origin, 0); }

Result<Value> FromMessages(const JsonValue& messages, ContentForm form,
                           std::vector<ChatPart>* parts) {
  std::vector<Value> items;
  items.reserve(messages.size());
  for (const JsonValue& message : messages.items()) {
    const Origin origin{static_cast<uint32_t>(items.size()), /*input=*/true};
    KV_ASSIGN(Value value, ConvertMessage(message, origin, form, parts));
    items.push_back(std::move(value));
  }
  return FromItems(std::move(items));
}

bool IsBlank(std::string_view text) {
  for (size_t i = 0; i < text.size(); i += CharSize(text, i)) {
    if (!IsSpace(CharAt(text, i))) return false;
  }
  return true;
}

}  // namespace kvasir::jinja
