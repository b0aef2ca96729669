// Fields: the typed reading of config.json and the files beside it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "import/model_config.h"
#include "kvasir/types.h"

namespace kvasir {

// Reads typed fields of one JSON object and keeps the first error. A null counts as absent, as
// transformers has it.
class Fields {
 public:
  Fields(const nlohmann::json& object, const std::string& file) : object_(object), file_(file) {}

  const Status& status() const { return status_; }
  const nlohmann::json* Find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  // Tells whether the key is there, be it null.
  bool Names(const char* key) const { return object_.contains(key); }
  // Reads a whole number in [1, max]. Without a fallback it must be there.
  uint32_t Count(const char* key, uint32_t max, std::optional<uint32_t> fallback = {}) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) {
      if (!fallback) Wrong("{} is missing", key);
      return fallback.value_or(1);
    }
    if (!value->is_number_unsigned() || value->get<uint64_t>() < 1 ||
        value->get<uint64_t>() > max) {
      Wrong("{} is {}; it must be a whole number from 1 to {}", key, Show(*value), max);
      return 1;
    }
    return static_cast<uint32_t>(value->get<uint64_t>());
  }
  // Reads a whole number in [0, max].
  uint32_t CountFrom0(const char* key, uint32_t max, uint32_t fallback) {
    const nlohmann::json* value = Find(key);
    if (value != nullptr && value->is_number_unsigned() && *value == 0) return 0;
    return Count(key, max, fallback);
  }
  double Number(const char* key, std::optional<double> fallback = {}) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) {
      if (!fallback) Wrong("{} is missing", key);
      return fallback.value_or(1);
    }
    if (!value->is_number()) Wrong("{} is {}; it must be a number", key, Show(*value));
    return value->is_number() ? value->get<double>() : 1;
  }
  // Reads a number in [least, most], if there is one.
  std::optional<double> NumberWithin(const char* key, double least, double most) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_number()) {
      const auto number = value->get<double>();
      if (number >= least && number <= most) return number;
    }
    Wrong("{} is {}; it must be a number from {} to {}", key, Show(*value), least, most);
    return std::nullopt;
  }
  bool Flag(const char* key, bool fallback) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) Wrong("{} is {}; it must be true or false", key, Show(*value));
    return value->is_boolean() && value->get<bool>();
  }
  std::string Text(const char* key, std::string fallback) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) Wrong("{} is {}; it must be a string", key, Show(*value));
    return value->is_string() ? value->get<std::string>() : fallback;
  }
  // Reads a token id or a list of them.
  std::vector<TokenId> Ids(const char* key) {
    const nlohmann::json* value = Find(key);
    std::vector<TokenId> ids;
    if (value == nullptr) return ids;
    const auto add = [&](const nlohmann::json& id) {
      if (id.is_number_unsigned() && id.get<uint64_t>() < ConfigLimits::kVocabSize) {
        ids.push_back(static_cast<TokenId>(id.get<uint64_t>()));
      } else {
        Wrong("{} holds {}, which is not a token id", key, Show(id));
      }
    };
    if (value->is_array()) {
      for (const nlohmann::json& id : *value) add(id);
    } else {
      add(*value);
    }
    return ids;
  }
  // Shows for messages: scalars as they are, the rest by kind (never a deep or long dump).
  static std::string Show(const nlohmann::json& value) {
    if (value.is_structured()) return value.is_array() ? "an array" : "an object";
    return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 80);
  }

 private:
  template <typename... Args>
  void Wrong(fmt::format_string<Args...> format, Args&&... args) {
    if (!status_) return;
    status_ = Fail(Code::kInvalidArgument, "{}: {}", file_,
                   fmt::format(format, std::forward<Args>(args)...));
  }

  const nlohmann::json& object_;
  const std::string& file_;
  Status status_;
};

}  // namespace kvasir
