// Metadata: the typed reading of a GGUF file's keys.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "import/gguf.h"
#include "import/model_config.h"
#include "kvasir/types.h"

namespace kvasir {

// Of any integer type, if it is not negative.
inline std::optional<uint64_t> WholeNumber(const GgufValue& value) {
  if (const auto* u = std::get_if<uint64_t>(&value)) return *u;
  if (const auto* i = std::get_if<int64_t>(&value); i && *i >= 0) return static_cast<uint64_t>(*i);
  return std::nullopt;
}

// Reads typed metadata and keeps the first error. Keys are given without the architecture's prefix.
class Metadata {
 public:
  Metadata(const GgufFile& gguf, std::string_view prefix, const std::string& file)
      : gguf_(gguf), prefix_(prefix), file_(file) {}

  const Status& status() const { return status_; }
  const GgufValue* Find(const std::string& key) const {
    const auto found = gguf_.metadata.find(prefix_ + key);
    return found == gguf_.metadata.end() ? nullptr : &found->second;
  }
  bool Has(const std::string& key) const { return Find(key) != nullptr; }
  // A whole number in [1, max], of any integer type. Without a fallback it must be there.
  uint32_t Count(const std::string& key, uint32_t max, std::optional<uint32_t> fallback = {}) {
    const GgufValue* value = Find(key);
    if (value == nullptr) {
      if (!fallback) Wrong("'{}{}' is missing", prefix_, key);
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
      Wrong("'{}{}' must be a whole number from 1 to {}", prefix_, key, max);
      return 1;
    }
    return static_cast<uint32_t>(*number);
  }
  double Number(const std::string& key, std::optional<double> fallback = {}) {
    const GgufValue* value = Find(key);
    if (value == nullptr) {
      if (!fallback) Wrong("'{}{}' is missing", prefix_, key);
      return fallback.value_or(1);
    }
    if (const auto* number = std::get_if<double>(value)) return *number;
    Wrong("'{}{}' must be a float", prefix_, key);
    return 1;
  }
  std::string Text(const std::string& key, std::string fallback) {
    const GgufValue* value = Find(key);
    if (value == nullptr) return fallback;
    if (const auto* text = std::get_if<std::string>(value)) return *text;
    Wrong("'{}{}' must be a string", prefix_, key);
    return fallback;
  }
  // Appends a token id where the key is there.
  void AddId(const std::string& key, std::vector<TokenId>& ids) {
    const GgufValue* value = Find(key);
    if (value == nullptr) return;
    const auto id = WholeNumber(*value);
    if (!id || *id >= ConfigLimits::kVocabSize) {
      Wrong("'{}{}' is not a token id", prefix_, key);
    } else if (std::ranges::find(ids, static_cast<TokenId>(*id)) == ids.end()) {
      ids.push_back(static_cast<TokenId>(*id));
    }
  }

 private:
  template <typename... Args>
  void Wrong(fmt::format_string<Args...> format, Args&&... args) {
    if (!status_) return;
    status_ = Fail(Code::kInvalidArgument, "{}: metadata {}", file_,
                   fmt::format(format, std::forward<Args>(args)...));
  }

  const GgufFile& gguf_;
  const std::string prefix_;
  const std::string& file_;
  Status status_;
};

}  // namespace kvasir
