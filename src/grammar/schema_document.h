// SchemaDocument: a JSON Schema as a document: its references, values and types.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_tree.h"
#include "kvasir/status.h"

namespace kvasir {

// A schema and where it stands: "#/properties/a".
struct SchemaPlace {
  const JsonValue* schema;
  std::string path;

  SchemaPlace At(std::string_view key, const JsonValue& value) const;
};

// An error about a place.
tl::unexpected<Error> SchemaError(std::string_view path, std::string_view message);

// Types as bits.
using TypeSet = uint32_t;
inline constexpr TypeSet kNullType = 1, kBooleanType = 2, kIntegerType = 4, kNumberType = 8,
                         kStringType = 16, kArrayType = 32, kObjectType = 64, kAnyType = 127;

// The JSON text of a value, without white space, members sorted. Equal values have equal texts.
std::string SortedTextOf(const JsonValue& value);
// A text in quotes, with the escapes that it needs.
std::string QuotedJson(std::string_view text);
TypeSet TypeOf(const JsonValue& value);

// Keywords that say nothing about the value.
bool IsAnnotation(std::string_view keyword);
// Keywords of any draft that do.
bool IsConstraint(std::string_view keyword);

// One thread at a time.
class SchemaDocument {
 public:
  explicit SchemaDocument(const JsonValue& root) : root_(root) {}

  // What a "$ref" names, which is inside the document.
  Result<SchemaPlace> Resolve(const JsonValue& reference, const std::string& path) const;
  // Follows references of schemas that have nothing else.
  Result<SchemaPlace> Follow(SchemaPlace place) const;
  // The types named by "type"; absent where that is missing.
  Result<std::optional<TypeSet>> NamedTypes(const SchemaPlace& place) const;
  // All types that its values may have.
  Result<TypeSet> PossibleTypes(const SchemaPlace& place, int depth = 0) const;
  // The texts of "const" or "enum"; absent where both are missing.
  std::optional<std::vector<std::string>> Values(const JsonValue& schema) const;
  // kInvalidArgument unless no value can match two of the branches, by types and constant values.
  Status CheckDisjoint(const std::vector<SchemaPlace>& branches, const std::string& path) const;
  // One schema of what all the parts say together.
  Result<SchemaPlace> Merge(const std::vector<SchemaPlace>& parts, const std::string& path);

 private:
  Result<bool> AreDisjoint(const SchemaPlace& one, const SchemaPlace& other) const;
  Result<SchemaPlace> MergeObjects(const std::vector<SchemaPlace>& parts, const std::string& path);

  const JsonValue root_;
  JsonTree tree_;  // of merged schemas
  std::vector<std::unique_ptr<JsonValue>> merged_;
  size_t joined_ = 0;           // properties of those
  mutable uint64_t steps_ = 0;  // of CheckDisjoint
};

}  // namespace kvasir
