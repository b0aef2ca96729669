// What JSON Schema knows: its keywords, the types of values, and the text of a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_tree.h"

namespace kvasir {

// Types as bits.
using TypeSet = uint32_t;
inline constexpr TypeSet kNullType = 1, kBooleanType = 2, kIntegerType = 4, kNumberType = 8,
                         kStringType = 16, kArrayType = 32, kObjectType = 64, kAnyType = 127;

// Returns the types that a name stands for; absent: there is no such type.
std::optional<TypeSet> TypeNamed(std::string_view name);
TypeSet TypeOf(const JsonValue& value);

// Returns the keywords that constrain values of any of these types.
std::vector<std::string_view> KeywordsOf(TypeSet types);
// Returns the types whose keywords a schema without "type" has; kAnyType if it has none of them.
TypeSet TypesByKeywords(const JsonValue& schema);

// Tells whether a keyword says nothing about the value.
bool IsAnnotation(std::string_view keyword);
// Tells whether a keyword of any draft says something about it.
bool IsConstraint(std::string_view keyword);

// Returns the JSON text of a value, without white space, members sorted. Equal values have equal
// texts.
std::string SortedTextOf(const JsonValue& value);

}  // namespace kvasir
