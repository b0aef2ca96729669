// JSON Schema: the JSON texts that a schema admits.
#pragma once

#include <optional>
#include <string_view>

#include "base/json_tree.h"
#include "grammar/json_text.h"

namespace kvasir {

enum class SchemaStrictness : uint8_t {
  kLoose,   // keywords that only annotate, unknown ones and unknown formats are ignored
  kStrict,  // of those only the standard's annotations are (title, description, default, ...)
};

// Adds a schema: each text of the grammar is a value that the schema admits;
// docs/structured-output.md says which of those it has (properties in the order of the schema,
// little white space), and lists the keywords. kInvalidArgument names the path of what is wrong,
// contradictory or not supported: "at '#/properties/a/not': ...". O(size), and what its repetitions
// are made of. The grammar's limits are checked when it is compiled. Several schemas may share
// `json`. `property`: only the values of this one of its `properties`.
Result<ExpressionId> AddJsonSchema(const JsonValue& schema, SchemaStrictness strictness,
                                   JsonText* json, std::optional<std::string_view> property = {});

}  // namespace kvasir
