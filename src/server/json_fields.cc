#include "server/json_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

using nlohmann::json;

constexpr size_t kMaxUnread = 64;       // names told
constexpr size_t kMaxUnreadBytes = 64;  // of each

// The integer that a value stands for.
std::optional<int64_t> AsInteger(const json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t u = value.get<uint64_t>();
    if (u > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(u);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double d = value.get<double>();
  if (!(std::abs(d) < 0x1p53) || d != std::floor(d)) return std::nullopt;
  return static_cast<int64_t>(d);
}

}  // namespace

JsonFields::JsonFields(const json& object, std::string path)
    : object_(object), path_(std::move(path)) {}

const json* JsonFields::Find(std::string_view name) {
  read_.emplace(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonFields::Has(std::string_view name) const {
  const auto it = object_.find(name);
  return it != object_.end() && !it->is_null();
}

void JsonFields::Fail(std::string_view name, std::string message) {
  if (error_) return;
  const std::string param = path_ + std::string(name);
  error_ = ApiError{Code::kInvalidArgument, fmt::format("{}: {}", param, message), param};
}

void JsonFields::Number(std::string_view name, double min, double max, float* out) {
  const json* value = Find(name);
  if (!value) return;
  if (!value->is_number()) return Fail(name, fmt::format("is {}, not a number", KindOf(*value)));
  const double number = value->get<double>();
  if (!(number >= min && number <= max)) {
    return Fail(name, fmt::format("{} is not within {} and {}", number, min, max));
  }
  *out = static_cast<float>(number);
}

std::optional<int64_t> JsonFields::Integer(std::string_view name, int64_t min, int64_t max) {
  const json* value = Find(name);
  if (!value) return std::nullopt;
  if (!value->is_number()) {
    Fail(name, fmt::format("is {}, not an integer", KindOf(*value)));
    return std::nullopt;
  }
  const std::optional<int64_t> integer = AsInteger(*value);
  if (!integer || *integer < min || *integer > max) {
    Fail(name, fmt::format("{} is no integer within {} and {}", value->dump(), min, max));
    return std::nullopt;
  }
  return integer;
}

void JsonFields::Unsigned(std::string_view name, uint32_t min, uint32_t max, uint32_t* out) {
  if (const auto integer = Integer(name, min, max)) *out = static_cast<uint32_t>(*integer);
}

void JsonFields::Bool(std::string_view name, bool* out) {
  const json* value = Find(name);
  if (!value) return;
  if (!value->is_boolean()) return Fail(name, fmt::format("is {}, not a boolean", KindOf(*value)));
  *out = value->get<bool>();
}

void JsonFields::String(std::string_view name, std::string* out) {
  const json* value = Find(name);
  if (!value) return;
  if (!value->is_string()) return Fail(name, fmt::format("is {}, not a string", KindOf(*value)));
  *out = value->get_ref<const std::string&>();
}

void JsonFields::Ids(std::string_view name, uint32_t vocab_size, std::vector<TokenId>* out) {
  const json* value = Find(name);
  if (!value) return;
  auto ids = ToTokenIds(*value, vocab_size, path_ + std::string(name));
  if (ids) {
    *out = std::move(*ids);
  } else if (!error_) {
    error_ = ids.error();
  }
}

void JsonFields::Strings(std::string_view name, size_t max, size_t max_bytes,
                         std::vector<std::string>* out) {
  const json* value = Find(name);
  if (!value) return;
  const json list = value->is_string() ? json::array({*value}) : *value;
  if (!list.is_array()) {
    return Fail(name, fmt::format("is {}, not a string or a list of strings", KindOf(list)));
  }
  if (list.size() > max) {
    return Fail(name, fmt::format("has {} strings; at most {} are taken", list.size(), max));
  }
  for (const json& element : list) {
    if (!element.is_string()) {
      return Fail(name, fmt::format("has {} where a string must be", KindOf(element)));
    }
    const size_t bytes = element.get_ref<const std::string&>().size();
    if (bytes == 0) return Fail(name, "has an empty string");
    if (bytes > max_bytes) {
      return Fail(name,
                  fmt::format("has a string of {} bytes; at most {} are taken", bytes, max_bytes));
    }
    out->push_back(element.get<std::string>());
  }
}

std::vector<std::string> JsonFields::Unread() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items()) {
    if (read_.contains(name)) continue;
    names.push_back(name.substr(0, kMaxUnreadBytes));
    if (names.size() == kMaxUnread) break;
  }
  return names;
}

ApiResult<std::vector<TokenId>> ToTokenIds(const json& value, uint32_t vocab_size,
                                           const std::string& param) {
  if (!IsIds(value)) {
    return Invalid(param,
                   value.is_array()
                       ? fmt::format("{}: has {}, not a token id", param, KindOf(value[0]))
                       : fmt::format("{}: is {}, not an array of token ids", param, KindOf(value)));
  }
  const std::span<const TokenId> ids = AsIds(value);
  for (const TokenId id : ids) {
    if (id >= 0 && static_cast<uint32_t>(id) < vocab_size) continue;
    return Invalid(param, fmt::format("{}: token id {} is not within 0 and {}", param, id,
                                      static_cast<int64_t>(vocab_size) - 1));
  }
  return std::vector<TokenId>(ids.begin(), ids.end());
}

}  // namespace kvasir
