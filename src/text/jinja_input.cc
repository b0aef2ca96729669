#include "text/jinja_input.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/result.h"

namespace kvasir::jinja {
namespace {

constexpr uint32_t kMaxDepth = 100;

template <typename Json>
Result<Value> Convert(const Json& data, Origin origin, uint32_t depth) {
  using Type = nlohmann::detail::value_t;
  if (depth > kMaxDepth)
    return Fail(Code::kInvalidArgument, "data is nested more than {} deep", kMaxDepth);
  switch (data.type()) {
    case Type::null:
      return Value(None{}, origin);
    case Type::boolean:
      return Value(data.template get<bool>(), origin);
    case Type::number_integer:
      return FromInt(data.template get<int64_t>(), origin);
    case Type::number_unsigned: {
      const uint64_t number = data.template get<uint64_t>();
      // Integers end at 63 bits here; what is larger is a float.
      if (number > uint64_t{INT64_MAX}) return Value(static_cast<double>(number), origin);
      return FromInt(static_cast<int64_t>(number), origin);
    }
    case Type::number_float:
      return Value(data.template get<double>(), origin);
    case Type::string: {
      Value value = FromString(data.template get_ref<const std::string&>(), origin);
      value.origin = origin;
      return value;
    }
    case Type::array: {
      std::vector<Value> items;
      for (const Json& item : data) {
        KV_ASSIGN(Value value, Convert(item, origin, depth + 1));
        items.push_back(std::move(value));
      }
      Value list = FromItems(std::move(items));
      list.origin = origin;
      return list;
    }
    case Type::object: {
      Dict dict;
      for (const auto& [key, item] : data.items()) {
        KV_ASSIGN(Value value, Convert(item, origin, depth + 1));
        dict.Append(FromString(key, origin), std::move(value));
      }
      return FromDict(std::move(dict), origin);
    }
    default:
      return Fail(Code::kInvalidArgument, "data holds a value that JSON does not have");
  }
}

bool IsKnownRole(std::string_view role) {
  static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

template <typename Json>
Result<Value> ConvertMessage(const Json& message, Origin origin) {
  if (!message.is_object()) return Convert(message, origin, 1);
  Dict dict;
  for (const auto& [key, item] : message.items()) {
    KV_ASSIGN(Value value, Convert(item, origin, 2));
    if (key == "role" && value.is_string() && IsKnownRole(value.text().view())) {
      value = FromString(value.text().view(), Origin{origin.message, /*input=*/false});
    }
    dict.Append(FromString(key, origin), std::move(value));
  }
  return FromDict(std::move(dict), origin);
}

}  // namespace

template <typename Json>
Result<Value> FromJson(const Json& data) {
  return Convert(data, Origin{std::nullopt, /*input=*/true}, 0);
}

template <typename Json>
Result<Value> FromMessages(const Json& messages) {
  if (!messages.is_array()) return Fail(Code::kInvalidArgument, "messages must be an array");
  std::vector<Value> items;
  for (const Json& message : messages) {
    const Origin origin{static_cast<uint32_t>(items.size()), /*input=*/true};
    KV_ASSIGN(Value value, ConvertMessage(message, origin));
    items.push_back(std::move(value));
  }
  return FromItems(std::move(items));
}

template Result<Value> FromJson(const nlohmann::json&);
template Result<Value> FromJson(const nlohmann::ordered_json&);
template Result<Value> FromMessages(const nlohmann::json&);
template Result<Value> FromMessages(const nlohmann::ordered_json&);

}  // namespace kvasir::jinja
