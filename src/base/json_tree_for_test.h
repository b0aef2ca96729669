// Values of nlohmann's library as a JsonTree's.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "base/json_tree.h"

namespace kvasir {

template <typename Json>
JsonValue TreeOf(const Json& json, JsonTree* tree) {
  if (json.is_boolean()) return JsonValue(json.template get<bool>());
  if (json.is_number_unsigned()) return JsonValue(json.template get<uint64_t>());
  if (json.is_number_integer()) return JsonValue(json.template get<int64_t>());
  if (json.is_number_float()) return JsonValue(json.template get<double>());
  if (json.is_string()) return tree->String(json.template get_ref<const std::string&>());
  if (json.is_array()) {
    std::vector<JsonValue> items;
    for (const Json& item : json) items.push_back(TreeOf(item, tree));
    return tree->Array(items);
  }
  std::vector<JsonValue::Member> members;
  if (!json.is_object()) return JsonValue();
  for (const auto& [key, value] : json.items()) {
    members.push_back({tree->KeepText(key), TreeOf(value, tree)});
  }
  return tree->Object(members);
}

}  // namespace kvasir
