// SchemaDocument: a JSON Schema as a document: its references, values and types.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_tree.h"
#include "grammar/grammar_source.h"
#include "grammar/schema_keywords.h"
#include "kvasir/status.h"

namespace kvasir {

// A schema and where it stands, for errors: "#/properties/a". Long paths lack their middle.
struct SchemaPlace {
  const JsonValue* schema;
  std::string path;

  SchemaPlace At(std::string_view key, const JsonValue& value) const;
};

// Returns an error about a place.
tl::unexpected<Error> SchemaError(std::string_view path, std::string_view message);

// Returns the types named by "type"; absent where that is missing.
Result<std::optional<TypeSet>> NamedTypes(const SchemaPlace& place);

// What it may do more than once counts as steps of `source`, which must outlive it: all its errors
// may be those of GrammarSource::Spend. One thread at a time.
class SchemaDocument {
 public:
  SchemaDocument(const JsonValue& root, GrammarSource* source) : root_(root), source_(source) {}

  // Counts steps of work on it.
  Status Spend(uint64_t steps) const { return source_->Spend(steps); }

  // Returns what a "$ref" names, which is inside the document.
  Result<SchemaPlace> Resolve(const JsonValue& reference, const std::string& path) const;
  // Follows references of schemas that have nothing else.
  Result<SchemaPlace> Follow(SchemaPlace place) const;
  // Returns all types that its values may have.
  Result<TypeSet> PossibleTypes(const SchemaPlace& place, int depth = 0) const;
  // kInvalidArgument unless no value can match two of the branches, by types and constant values.
  Status CheckDisjoint(const std::vector<SchemaPlace>& branches, const std::string& path) const;

 private:
  using Texts = std::vector<std::string>;  // ascending, each once

  Result<bool> AreDisjoint(const SchemaPlace& one, const SchemaPlace& other) const;
  // Returns the texts of "const" or "enum"; null where both are missing.
  Result<const Texts*> ValuesOf(const JsonValue& schema) const;
  Result<bool> HaveNoneInCommon(const JsonValue& one, const JsonValue& other) const;

  const JsonValue root_;
  GrammarSource* const source_;
  mutable std::map<const JsonValue*, Texts> values_;   // of a "const" or "enum"
  mutable std::map<const JsonValue*, TypeSet> types_;  // of an "enum"
};

}  // namespace kvasir
