// SchemaDocument: a JSON Schema as a document: its references, values and types.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_tree.h"
#include "grammar/schema_keywords.h"
#include "kvasir/status.h"

namespace kvasir {

// A schema and where it stands: "#/properties/a".
struct SchemaPlace {
  const JsonValue* schema;
  std::string path;

  SchemaPlace At(std::string_view key, const JsonValue& value) const;
};

// Returns an error about a place.
tl::unexpected<Error> SchemaError(std::string_view path, std::string_view message);

// Returns the types named by "type"; absent where that is missing.
Result<std::optional<TypeSet>> NamedTypes(const SchemaPlace& place);

// One thread at a time.
class SchemaDocument {
 public:
  explicit SchemaDocument(const JsonValue& root) : root_(root) {}

  // Returns what a "$ref" names, which is inside the document.
  Result<SchemaPlace> Resolve(const JsonValue& reference, const std::string& path) const;
  // Follows references of schemas that have nothing else.
  Result<SchemaPlace> Follow(SchemaPlace place) const;
  // Returns all types that its values may have.
  Result<TypeSet> PossibleTypes(const SchemaPlace& place, int depth = 0) const;
  // kInvalidArgument unless no value can match two of the branches, by types and constant values.
  Status CheckDisjoint(const std::vector<SchemaPlace>& branches, const std::string& path) const;

 private:
  Result<bool> AreDisjoint(const SchemaPlace& one, const SchemaPlace& other) const;

  const JsonValue root_;
  mutable uint64_t steps_ = 0;  // of CheckDisjoint
};

}  // namespace kvasir
