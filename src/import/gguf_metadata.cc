#include "import/gguf_metadata.h"

#include <algorithm>
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

uint32_t Metadata::Count(const std::string& key, uint32_t max, std::optional<uint32_t> fallback) {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    if (!fallback) Wrong(key, "is missing");
    return fallback.value_or(1);
  }
  if (std::holds_alternative<GgufArray>(*value)) {
    if (status_) {
      status_ = Fail(Code::kUnsupported,
                     "{}: metadata '{}{}' differs from layer to layer: that is not supported yet",
                     file_, prefix_, key);
    }
    return 1;
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
  const double* number = Typed<double>(key, "must be a float");
  return number == nullptr ? fallback.value_or(1) : *number;
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
