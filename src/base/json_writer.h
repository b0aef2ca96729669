// The JSON text of values, whole or in parts.
#pragma once

#include <concepts>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>

#include "base/json_tree.h"
#include "base/parts.h"

namespace kvasir {

// Returns the text of a value in one line; bytes that are not UTF-8 become U+FFFD. O(size).
std::string Dump(const nlohmann::json& value);
std::string DumpOrdered(const nlohmann::ordered_json& value);
template <std::same_as<nlohmann::ordered_json> Json>
std::string Dump(const Json& value) {
  return DumpOrdered(value);
}
std::string TextOf(const JsonValue& value);  // objects keep the order of their keys
// Returns the same with a space after each comma and colon, as models write JSON.
std::string SpacedTextOf(const JsonValue& value);

// Returns `text` as a JSON string, with its quotes; bytes that are not UTF-8 become U+FFFD.
std::string Quoted(std::string_view text);
void AppendQuoted(std::string_view text, std::string* out);

// Returns the text of an object without its closing brace, for one more member to follow. REQUIRES:
// it has a member.
std::string BeginObject(std::string object);
template <typename Json>
  requires std::same_as<Json, nlohmann::json> || std::same_as<Json, nlohmann::ordered_json>
std::string BeginObject(const Json& object) {
  return BeginObject(Dump(object));
}
// Returns the members of an object, to be put after others, with its closing brace. REQUIRES: it
// has a member.
std::string EndObject(const nlohmann::json& object);

// Moves whole characters from the front of `rest` to `out`, escaped for a JSON string and without
// quotes: 2 KiB or a little more.
void AppendEscaped(std::string_view* rest, std::string* out);

// Returns the string of a long text, which must outlive it; EscapedParts is without quotes.
Parts EscapedParts(std::string_view text);
Parts QuotedParts(std::string_view text);
// Returns the string of a text in parts of whole characters.
Parts QuotedParts(Parts text);

// Writes a list: the JSON text that `text_of` makes of each of the items, which must outlive it.
template <typename Items>
Parts ListParts(const Items& items,
                std::function<std::string(const std::ranges::range_value_t<Items>&)> text_of) {
  bool is_first = true;
  co_yield "[";
  for (const auto& item : items) {
    if (!std::exchange(is_first, false)) co_yield ",";
    co_yield text_of(item);
  }
  co_yield "]";
}
// Writes a list of whole numbers, which must outlive it.
template <typename Numbers>
Parts ListParts(const Numbers& numbers) {
  return ListParts(numbers, [](auto number) { return std::to_string(number); });
}

}  // namespace kvasir
