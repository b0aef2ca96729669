// The strings that a schema admits.
#pragma once

#include "grammar/json_schema.h"
#include "grammar/json_text.h"
#include "grammar/schema_document.h"
#include "kvasir/status.h"

namespace kvasir {

// Adds JSON strings of the schema's length, pattern or format. kInvalidArgument names the path of a
// keyword that is wrong or not supported.
Result<ExpressionId> AddSchemaString(const SchemaPlace& place, SchemaStrictness strictness,
                                     JsonText* json);

}  // namespace kvasir
