// SchemaMerger: one schema of what several say together (allOf).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/json_tree.h"
#include "base/result.h"
#include "grammar/schema_document.h"
#include "kvasir/status.h"

namespace kvasir {

// Owns the schemas that it makes. One thread at a time.
class SchemaMerger {
 public:
  // `document` must outlive it.
  explicit SchemaMerger(const SchemaDocument* document) : document_(*document) {}

  // Returns one schema of what all the parts say together. kInvalidArgument also where it takes too
  // many steps of the document.
  Result<SchemaPlace> Merge(const std::vector<SchemaPlace>& parts, const std::string& path);
  // Returns the members of a schema that `is_kept` takes, as a schema. Errors as Merge.
  template <typename IsKept>
  Result<const JsonValue*> Without(const SchemaPlace& place, const IsKept& is_kept) {
    std::vector<JsonValue::Member> members;
    KV_TRY(Join(place.schema->size(), place.path));
    for (const auto& member : place.schema->members()) {
      if (is_kept(member.key)) members.push_back(member);
    }
    return Keep(tree_.Object(std::move(members)));
  }

 private:
  struct Properties;
  // Counts properties. kInvalidArgument: they become too many.
  Status Join(size_t properties, const std::string& path);
  Result<SchemaPlace> MergeObjects(const std::vector<SchemaPlace>& parts, const std::string& path);
  const JsonValue* Keep(const JsonValue& schema) {
    made_.push_back(std::make_unique<JsonValue>(schema));
    return made_.back().get();
  }

  const SchemaDocument& document_;
  JsonTree tree_;
  std::vector<std::unique_ptr<JsonValue>> made_;
  size_t merged_ = 0, joined_ = 0;  // schemas of several, and members of all that it makes
};

}  // namespace kvasir
