#include "base/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>

#include "base/cut_names.h"
#include "base/json_writer.h"
#include "base/result.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr size_t kMaxUnreadBytes = 64;  // of each
constexpr size_t kMaxDigitsShown = 40, kMaxFoundBytes = 64;

// Returns the integer value of an integer or of a number such as 16.0.
std::optional<int64_t> AsInteger(const JsonValue& value) {
  if (value.kind() == JsonValue::Kind::kInteger) return value.integer();
  if (value.kind() != JsonValue::Kind::kFloat) return std::nullopt;
  const double d = value.number();
  if (!(std::abs(d) < 0x1p53) || d != std::floor(d)) return std::nullopt;
  return static_cast<int64_t>(d);
}

// Says which integers a field takes. Limits of the type alone tell a reader nothing, unless the
// number is beyond them.
std::string IntegersText(double number, int64_t min, int64_t max) {
  const bool has_max = max < INT32_MAX || number > static_cast<double>(max);
  const bool has_min = min > INT64_MIN || number < static_cast<double>(min);
  if (has_max) return fmt::format(" between {} and {}", min, max);
  return has_min ? fmt::format(" of at least {}", min) : "";
}

// Returns the names of all fields but those that were read, sorted.
std::vector<std::string> NamesBut(const JsonValue& object, std::span<const std::string_view> read) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.members()) {
    if (value.is_null() || std::ranges::find(read, name) != read.end()) continue;
    names.emplace_back(name.substr(0, kMaxUnreadBytes));
  }
  std::ranges::sort(names);
  return names;
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

std::string FoundText(const JsonValue& value) {
  if (value.is_bool()) return value.boolean() ? "true" : "false";
  if (value.is_number()) return NumberText(value);
  if (value.is_array() && value.size() == 0) return "an empty array";
  if (!value.is_string()) return std::string(KindOf(value));
  const std::string_view text = value.text();
  size_t end = std::min(text.size(), kMaxFoundBytes);
  while (end > 0 && end < text.size() && ContinuesChar(text[end])) --end;
  return Quoted(text.substr(0, end)) + (end < text.size() ? "..." : "");
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

void JsonFields::FailUnknown(std::string_view name, std::string message) {
  Error error{Code::kInvalidArgument, std::move(message), path_ + std::string(name)};
  error.field_is_sent = true;
  Fail(std::move(error));
}

void JsonFields::Fail(Error error) {
  if (!error_) error_ = std::move(error);
}

void JsonFields::Refuse(std::string_view name, std::string_view wanted) {
  const JsonValue* value = object_.Find(name);
  Fail(name, fmt::format("is {}, not {}", value ? FoundText(*value) : "missing", wanted));
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
    Fail(name, fmt::format("{} is not an integer{}", NumberText(*value),
                           IntegersText(value->number(), min, max)));
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
  std::vector<std::string> names = NamesBut(object_, read_), inner = inner_unread_;
  CutNames(&names);
  CutNames(&inner);
  std::ranges::move(inner, std::back_inserter(names));
  return names;
}

void JsonFields::TakeUnread(const JsonFields& inner) {
  for (const std::string& name : NamesBut(inner.object_, inner.read_)) {
    inner_unread_.push_back(inner.path_ + name);
  }
  for (const std::string& path : inner.inner_unread_) inner_unread_.push_back(inner.path_ + path);
}

void JsonFields::TakeUnread(std::span<const std::string> paths) {
  inner_unread_.insert(inner_unread_.end(), paths.begin(), paths.end());
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
