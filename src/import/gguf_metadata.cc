#include "import/gguf_metadata.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "import/model_config.h"

namespace kvasir {

std::optional<uint64_t> WholeNumber(const GgufValue& value) {
  if (const auto* u = std::get_if<uint64_t>(&value)) return *u;
  if (const auto* i = std::get_if<int64_t>(&value); i && *i >= 0) return static_cast<uint64_t>(*i);
  return std::nullopt;
}

const GgufValue* Metadata::Find(const std::string& key) const {
  const auto found = gguf_.metadata.find(prefix_ + key);
  return found == gguf_.metadata.end() ? nullptr : &found->second;
}

std::optional<uint64_t> Metadata::Whole(const std::string& key) const {
  const GgufValue* value = Find(key);
  return value == nullptr ? std::nullopt : WholeNumber(*value);
}

std::optional<bool> Metadata::Flag(const std::string& key) {
  const bool* flag = Typed<bool>(key, "must be a boolean");
  return flag == nullptr ? std::nullopt : std::optional(*flag);
}

std::optional<std::string> Metadata::Text(const std::string& key) {
  const auto* text = Typed<std::string>(key, "must be a string");
  return text == nullptr ? std::nullopt : std::optional(*text);
}

const GgufArray* Metadata::List(const std::string& key) {
  return Typed<GgufArray>(key, "must be a list");
}

std::optional<std::vector<std::string>> Metadata::Texts(const std::string& key, size_t max_count) {
  const GgufArray* list = List(key);
  if (list == nullptr) return std::nullopt;
  if (list->count > max_count) {
    Wrong(key, fmt::format("has {} entries, at most {} are allowed", list->count, max_count));
    return std::nullopt;
  }
  auto texts = StringsOf(*list);
  if (!texts) Wrong(key, "must be a list of strings");
  return texts;
}

std::optional<std::vector<double>> Metadata::Numbers(const std::string& key, size_t count) {
  const GgufArray* list = List(key);
  if (list == nullptr) return std::nullopt;
  if (list->count != count) {
    Wrong(key, fmt::format("has {} entries for {} tokens", list->count, count));
    return std::nullopt;
  }
  auto numbers = NumbersOf(*list);
  if (!numbers) Wrong(key, "must be a list of numbers");
  return numbers;
}

std::optional<TokenId> Metadata::Id(const std::string& key, size_t num_tokens) {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const auto id = WholeNumber(*value);
  const bool none = std::holds_alternative<int64_t>(*value);  // converters write -1 for "no token"
  if (!id && !none) Wrong(key, "must be a whole number");
  if (!id || *id >= num_tokens) return std::nullopt;
  return static_cast<TokenId>(*id);
}

std::optional<GgufValue> Metadata::OfAllLayers(const std::string& key) {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const auto* list = std::get_if<GgufArray>(value);
  if (list == nullptr) return *value;
  const uint64_t layers = Whole("block_count").value_or(0);
  if (list->count == 0 || list->count != layers) {
    Wrong(key, fmt::format("has {} entries for {} layers", list->count, layers));
    return std::nullopt;
  }
  const auto numbers = NumbersOf(*list);
  if (!numbers || numbers->size() != layers) {
    Wrong(key, "must be a number, or a list of numbers");
    return std::nullopt;
  }
  const double first = numbers->front();
  if (std::ranges::count(*numbers, first) != std::ssize(*numbers)) {
    if (status_) {
      status_ = Fail(Code::kUnsupported,
                     "{}: metadata '{}{}' differs from layer to layer: that is not supported yet",
                     file_, prefix_, key);
    }
    return std::nullopt;
  }
  constexpr double kExact = 0x1p53;
  const bool is_whole = first >= 0 && first < kExact && first == std::floor(first);
  return is_whole ? GgufValue(static_cast<uint64_t>(first)) : GgufValue(first);
}

uint32_t Metadata::Count(const std::string& key, uint32_t max, std::optional<uint32_t> fallback) {
  const std::optional<GgufValue> value = OfAllLayers(key);
  if (!value) {
    if (!fallback && !Has(key)) Wrong(key, "is missing");
    return fallback.value_or(1);
  }
  const auto number = WholeNumber(*value);
  if (!number || *number < 1 || *number > max) {
    Wrong(key, fmt::format("must be a whole number from 1 to {}", max));
    return 1;
  }
  return static_cast<uint32_t>(*number);
}

double Metadata::Number(const std::string& key, std::optional<double> fallback) {
  if (!Has(key) && !fallback) Wrong(key, "is missing");
  const std::optional<GgufValue> value = OfAllLayers(key);
  if (!value) return fallback.value_or(1);
  if (const auto* number = std::get_if<double>(&*value)) return *number;
  // Some converters write a number without a fraction as an integer.
  if (const auto* number = std::get_if<int64_t>(&*value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<uint64_t>(&*value)) return static_cast<double>(*number);
  Wrong(key, "must be a float");
  return fallback.value_or(1);
}

void Metadata::AddId(const std::string& key, size_t num_tokens, std::vector<TokenId>& ids) {
  const auto id = Id(key, num_tokens);
  if (id && std::ranges::find(ids, *id) == ids.end()) ids.push_back(*id);
}

void Metadata::Wrong(const std::string& key, std::string_view what) {
  if (!status_) return;
  status_ = Fail(code_, "{}: metadata '{}{}' {}{}", file_, prefix_, key, what, fix_);
}

}  // namespace kvasir
