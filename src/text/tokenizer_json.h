// Typed fields of an untrusted JSON object: absent or null gives the default, a wrong type an
// error.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvasir {

inline constexpr int kMaxNesting = 16;  // depth of Sequences in Sequences

// kCorruption names the file and the field.
inline Result<std::string> StringField(const nlohmann::json& object, const char* name,
                                       std::string_view fallback,
                                       std::string_view file = "tokenizer.json") {
  const auto it = object.find(name);
  if (it == object.end() || it->is_null()) return std::string(fallback);
  if (!it->is_string()) return Fail(Code::kCorruption, "{}: {} is not a string", file, name);
  return it->get<std::string>();
}

inline Result<bool> BoolField(const nlohmann::json& object, const char* name, bool fallback,
                              std::string_view file = "tokenizer.json") {
  const auto it = object.find(name);
  if (it == object.end() || it->is_null()) return fallback;
  if (!it->is_boolean()) return Fail(Code::kCorruption, "{}: {} is not a boolean", file, name);
  return it->get<bool>();
}

}  // namespace kvasir
