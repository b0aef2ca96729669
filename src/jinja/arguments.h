// Reads the arguments of a built-in.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>

#include "jinja/builtins.h"

namespace kvasir::jinja {

inline bool BoolArgument(const Arguments& arguments, size_t index, std::string_view name,
                         bool otherwise) {
  const Value* value = arguments.Find(index, name);
  return value ? Truthy(*value) : otherwise;
}

// Fails when the argument is not an integer; None counts as not given.
inline int64_t IntArgument(Interpreter& run, const Arguments& arguments, size_t index,
                           std::string_view name, int64_t otherwise) {
  const Value* value = arguments.Find(index, name);
  if (!value || value->is_none()) return otherwise;
  // Clamped, so that sums of two never overflow.
  constexpr int64_t kMost = int64_t{1} << 60;
  if (value->is_integer()) return std::clamp(value->integer(), -kMost, kMost);
  run.Fail("expected an integer for '" + std::string(name) + "', got " +
           std::string(TypeName(*value)));
  return otherwise;
}

inline Text TextArgument(const Arguments& arguments, size_t index, std::string_view name,
                         std::string_view otherwise) {
  const Value* value = arguments.Find(index, name);
  return value ? ToText(*value) : Text(otherwise);
}

// Returns the argument as a string; null when not given or None. Fails when it is something else.
inline const Text* StringArgument(Interpreter& run, const Arguments& arguments, size_t index,
                                  std::string_view name) {
  const Value* value = arguments.Find(index, name);
  if (!value || value->is_none()) return nullptr;
  if (value->is_string()) return &value->text();
  run.Fail("expected a string, got " + std::string(TypeName(*value)));
  return nullptr;
}

}  // namespace kvasir::jinja
