#include "base/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/result.h"

namespace kvasir {
namespace {

constexpr size_t kMaxUnreadBytes = 64;  // of each
constexpr size_t kMaxDigitsShown = 40;

// The integer value of an integer or of a number such as 16.0.
std::optional<int64_t> AsInteger(const JsonValue& value) {
  if (value.kind() == JsonValue::Kind::kInteger) return value.integer();
  if (value.kind() != JsonValue::Kind::kFloat) return std::nullopt;
  const double d = value.number();
  if (!(std::abs(d) < 0x1p53) || d != std::floor(d)) return std::nullopt;
  return static_cast<int64_t>(d);
}

}  // namespace

std::string_view KindOf(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kObject:
      return "an object";
    case JsonValue::Kind::kArray:
    case JsonValue::Kind::kIds:
      return "an array";
    case JsonValue::Kind::kString:
      return "a string";
    case JsonValue::Kind::kBool:
      return "a boolean";
    default:
      return "a number";
  }
}

bool IsIds(const JsonValue& value) {
  return value.kind() == JsonValue::Kind::kIds || (value.is_array() && value.size() == 0);
}

std::span<const TokenId> AsIds(const JsonValue& value) {
  static_assert(std::is_same_v<TokenId, int32_t>);
  return value.kind() == JsonValue::Kind::kIds ? value.ids() : std::span<const TokenId>();
}

std::string NumberText(const JsonValue& value) {
  if (!value.is_integer()) return fmt::format("{}", value.number());
  std::string text = value.integer_text();
  if (text.size() <= kMaxDigitsShown) return text;
  return fmt::format("{}... (of {} digits)", text.substr(0, kMaxDigitsShown / 2), text.size());
}

JsonFields::JsonFields(const JsonValue& object, std::string path)
    : object_(object), path_(std::move(path)) {}

const JsonValue* JsonFields::Find(std::string_view name) {
  if (std::ranges::find(read_, name) == read_.end()) read_.push_back(name);
  const JsonValue* value = object_.Find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool JsonFields::Has(std::string_view name) const {
  const JsonValue* value = object_.Find(name);
  return value != nullptr && !value->is_null();
}

void JsonFields::Fail(std::string_view name, std::string message) {
  Fail({Code::kInvalidArgument, std::move(message), path_ + std::string(name)});
}

void JsonFields::Fail(Error error) {
  if (!error_) error_ = std::move(error);
}

void JsonFields::Number(std::string_view name, double min, double max, float* out) {
  const JsonValue* value = Find(name);
  if (!value) return;
  if (!value->is_number()) return Fail(name, fmt::format("is {}, not a number", KindOf(*value)));
  const double number = value->number();
  if (!(number >= min && number <= max)) {
    return Fail(name, fmt::format("{} is not between {} and {}", number, min, max));
  }
  *out = static_cast<float>(number);
}

std::optional<int64_t> JsonFields::Integer(std::string_view name, int64_t min, int64_t max) {
  const JsonValue* value = Find(name);
  if (!value) return std::nullopt;
  if (!value->is_number()) {
    Fail(name, fmt::format("is {}, not an integer", KindOf(*value)));
    return std::nullopt;
  }
  const std::optional<int64_t> integer = AsInteger(*value);
  if (!integer || *integer < min || *integer > max) {
    Fail(name, fmt::format("{} is not an integer between {} and {}", NumberText(*value), min, max));
    return std::nullopt;
  }
  return integer;
}

void JsonFields::Unsigned(std::string_view name, uint32_t min, uint32_t max, uint32_t* out) {
  if (const auto integer = Integer(name, min, max)) *out = static_cast<uint32_t>(*integer);
}

void JsonFields::Bool(std::string_view name, bool* out) {
  const JsonValue* value = Find(name);
  if (!value) return;
  if (!value->is_bool()) return Fail(name, fmt::format("is {}, not a boolean", KindOf(*value)));
  *out = value->boolean();
}

void JsonFields::String(std::string_view name, std::string* out) {
  const JsonValue* value = Find(name);
  if (!value) return;
  if (!value->is_string()) return Fail(name, fmt::format("is {}, not a string", KindOf(*value)));
  *out = value->text();
}

void JsonFields::Text(std::string_view name, std::string_view* out) {
  const JsonValue* value = Find(name);
  if (!value) return;
  if (!value->is_string()) return Fail(name, fmt::format("is {}, not a string", KindOf(*value)));
  *out = value->text();
}

void JsonFields::Ids(std::string_view name, uint32_t vocab_size, std::vector<TokenId>* out) {
  const JsonValue* value = Find(name);
  if (!value) return;
  auto ids = ToTokenIds(*value, vocab_size, path_ + std::string(name));
  if (!ids) return Fail(std::move(ids.error()));
  *out = std::move(*ids);
}

void JsonFields::Strings(std::string_view name, size_t max, size_t max_bytes,
                         std::vector<std::string>* out, size_t min_bytes) {
  const JsonValue* value = Find(name);
  if (!value) return;
  if (!value->is_string() && !value->is_array()) {
    return Fail(name, fmt::format("is {}, not a string or a list of strings", KindOf(*value)));
  }
  const std::span<const JsonValue> list = value->is_string() ? std::span(value, 1) : value->items();
  if (list.size() > max) {
    return Fail(name, fmt::format("has {} strings; at most {} are allowed", list.size(), max));
  }
  for (const JsonValue& element : list) {
    if (!element.is_string()) {
      return Fail(name, fmt::format("has {}; each element must be a string", KindOf(element)));
    }
    const size_t bytes = element.size();
    if (bytes < min_bytes) return Fail(name, "has an empty string");
    if (bytes > max_bytes) {
      return Fail(
          name, fmt::format("has a string of {} bytes; at most {} are allowed", bytes, max_bytes));
    }
    out->emplace_back(element.text());
  }
}

std::vector<std::string> JsonFields::Unread() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.members()) {
    if (value.is_null() || std::ranges::find(read_, name) != read_.end()) continue;
    names.emplace_back(name.substr(0, kMaxUnreadBytes));
    if (names.size() == kMaxUnread) break;
  }
  std::ranges::sort(names);
  names.insert(names.end(), inner_unread_.begin(), inner_unread_.end());
  return names;
}

void JsonFields::TakeUnread(const JsonFields& inner) {
  std::vector<std::string> paths = inner.Unread();
  for (std::string& path : paths) path.insert(0, inner.path_);
  TakeUnread(paths);
}

void JsonFields::TakeUnread(std::span<const std::string> paths) {
  const size_t room = kMaxUnread - std::min(kMaxUnread, inner_unread_.size());
  const auto taken = paths.first(std::min(room, paths.size()));
  inner_unread_.insert(inner_unread_.end(), taken.begin(), taken.end());
}

Result<std::vector<TokenId>> ToTokenIds(const JsonValue& value, uint32_t vocab_size,
                                        const std::string& field) {
  if (!IsIds(value)) {
    if (!value.is_array()) {
      return FailField(Code::kInvalidArgument, field, "is {}, not an array of token ids",
                       KindOf(value));
    }
    return FailField(Code::kInvalidArgument, field, "has {}, not a token id",
                     KindOf(value.items()[0]));
  }
  const std::span<const TokenId> ids = AsIds(value);
  for (const TokenId id : ids) {
    if (id >= 0 && static_cast<uint32_t>(id) < vocab_size) continue;
    return FailField(Code::kInvalidArgument, field, "token id {} is not within 0 and {}", id,
                     static_cast<int64_t>(vocab_size) - 1);
  }
  return std::vector<TokenId>(ids.begin(), ids.end());
}

}  // namespace kvasir
