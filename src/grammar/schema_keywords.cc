#include "grammar/schema_keywords.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/json_writer.h"

namespace kvasir {
namespace {

constexpr std::pair<std::string_view, TypeSet> kTypes[] = {{"null", kNullType},
                                                           {"boolean", kBooleanType},
                                                           {"integer", kIntegerType},
                                                           {"string", kStringType},
                                                           {"array", kArrayType},
                                                           {"object", kObjectType},
                                                           {"number", kNumberType | kIntegerType}};

struct TypeKeyword {
  std::string_view keyword;
  TypeSet types;  // that it constrains
};
constexpr TypeSet kNumberTypes = kNumberType | kIntegerType;
constexpr TypeKeyword kTypeKeywords[] = {{"properties", kObjectType},
                                         {"required", kObjectType},
                                         {"additionalProperties", kObjectType},
                                         {"items", kArrayType},
                                         {"prefixItems", kArrayType},
                                         {"minItems", kArrayType},
                                         {"maxItems", kArrayType},
                                         {"minLength", kStringType},
                                         {"maxLength", kStringType},
                                         {"pattern", kStringType},
                                         {"format", kStringType},
                                         {"minimum", kNumberTypes},
                                         {"maximum", kNumberTypes},
                                         {"exclusiveMinimum", kNumberTypes},
                                         {"exclusiveMaximum", kNumberTypes}};

constexpr std::string_view kAnnotations[] = {
    "title",      "description", "default",   "examples",      "example", "$comment",   "$schema",
    "deprecated", "readOnly",    "writeOnly", "discriminator", "$defs",   "definitions"};

constexpr std::string_view kConstraints[] = {"type",
                                             "properties",
                                             "required",
                                             "additionalProperties",
                                             "enum",
                                             "const",
                                             "anyOf",
                                             "oneOf",
                                             "allOf",
                                             "$ref",
                                             "items",
                                             "prefixItems",
                                             "minItems",
                                             "maxItems",
                                             "minLength",
                                             "maxLength",
                                             "pattern",
                                             "minimum",
                                             "maximum",
                                             "exclusiveMinimum",
                                             "exclusiveMaximum",
                                             "multipleOf",
                                             "not",
                                             "if",
                                             "then",
                                             "else",
                                             "patternProperties",
                                             "propertyNames",
                                             "dependentRequired",
                                             "dependentSchemas",
                                             "dependencies",
                                             "contains",
                                             "minContains",
                                             "maxContains",
                                             "uniqueItems",
                                             "minProperties",
                                             "maxProperties",
                                             "unevaluatedProperties",
                                             "unevaluatedItems",
                                             "additionalItems",
                                             "$dynamicRef",
                                             "$recursiveRef",
                                             "$id",
                                             "id",
                                             "$anchor",
                                             "$dynamicAnchor",
                                             "$recursiveAnchor",
                                             "nullable",
                                             "extends",
                                             "disallow",
                                             "divisibleBy",
                                             "$vocabulary"};

}  // namespace

std::optional<TypeSet> TypeNamed(std::string_view name) {
  for (const auto& [known, bits] : kTypes) {
    if (known == name) return bits;
  }
  return std::nullopt;
}

TypeSet TypeOf(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      return kNullType;
    case JsonValue::Kind::kBool:
      return kBooleanType;
    case JsonValue::Kind::kInteger:
    case JsonValue::Kind::kUnsigned:
    case JsonValue::Kind::kDigits:
      return kIntegerType;
    case JsonValue::Kind::kFloat:
      return value.number() == std::floor(value.number()) ? kIntegerType : kNumberType;
    case JsonValue::Kind::kString:
      return kStringType;
    case JsonValue::Kind::kIds:
    case JsonValue::Kind::kArray:
      return kArrayType;
    case JsonValue::Kind::kObject:
      return kObjectType;
  }
  return kAnyType;
}

std::vector<std::string_view> KeywordsOf(TypeSet types) {
  std::vector<std::string_view> keywords;
  for (const TypeKeyword& one : kTypeKeywords) {
    if ((one.types & types) != 0) keywords.push_back(one.keyword);
  }
  return keywords;
}

TypeSet TypesByKeywords(const JsonValue& schema) {
  TypeSet types = 0;
  for (const TypeKeyword& one : kTypeKeywords) {
    if (schema.Find(one.keyword) != nullptr) types |= one.types;
  }
  return types == 0 ? kAnyType : types;
}

bool IsAnnotation(std::string_view keyword) {
  return std::ranges::find(kAnnotations, keyword) != std::end(kAnnotations);
}

bool IsConstraint(std::string_view keyword) {
  return std::ranges::find(kConstraints, keyword) != std::end(kConstraints);
}

std::string SortedTextOf(const JsonValue& value) {
  std::string text;
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBool:
      return value.boolean() ? "true" : "false";
    case JsonValue::Kind::kInteger:
    case JsonValue::Kind::kUnsigned:
    case JsonValue::Kind::kDigits:
      return value.integer_text();
    case JsonValue::Kind::kFloat:
      if (std::fabs(value.number()) < 0x1p63 && value.number() == std::floor(value.number())) {
        return std::to_string(static_cast<int64_t>(value.number()));
      }
      return fmt::format("{}", value.number());
    case JsonValue::Kind::kString:
      return Quoted(value.text());
    case JsonValue::Kind::kIds:
      for (const int32_t id : value.ids()) text += (text.empty() ? "" : ",") + std::to_string(id);
      return "[" + text + "]";
    case JsonValue::Kind::kArray:
      for (const JsonValue& item : value.items())
        text += (text.empty() ? "" : ",") + SortedTextOf(item);
      return "[" + text + "]";
    case JsonValue::Kind::kObject: {
      std::vector<std::string> members;
      for (const auto& member : value.members()) {
        members.push_back(Quoted(member.key) + ":" + SortedTextOf(member.value));
      }
      std::sort(members.begin(), members.end());
      return fmt::format("{{{}}}", fmt::join(members, ","));
    }
  }
  return text;
}

}  // namespace kvasir
