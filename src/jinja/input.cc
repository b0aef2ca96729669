#include "jinja/input.h"

#include <algorithm>
#include <string_view>

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
    case Kind::kUnsigned:  // integers end at 63 bits here
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

bool IsKnownRole(std::string_view role) {
  static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

Result<Value> ConvertMessage(const JsonValue& message, Origin origin) {
  if (!message.is_object()) return Convert(message, origin, 1);
  Dict dict;
  dict.Reserve(message.size());
  for (const auto& [key, item] : message.members()) {
    KV_ASSIGN(Value value, Convert(item, origin, 2));
    if (key == "role" && item.is_string() && IsKnownRole(item.text())) {
      value = FromString(item.text(), Origin{origin.message, /*input=*/false});
    }
    dict.Append(FromString(key, origin), std::move(value));
  }
  return FromDict(std::move(dict), origin);
}

}  // namespace

Result<Value> FromJson(const JsonValue& data, Origin origin) { return Convert(data, origin, 0); }

Result<Value> FromMessages(const JsonValue& messages) {
  std::vector<Value> items;
  items.reserve(messages.size());
  for (const JsonValue& message : messages.items()) {
    const Origin origin{static_cast<uint32_t>(items.size()), /*input=*/true};
    KV_ASSIGN(Value value, ConvertMessage(message, origin));
    items.push_back(std::move(value));
  }
  return FromItems(std::move(items));
}

}  // namespace kvasir::jinja
