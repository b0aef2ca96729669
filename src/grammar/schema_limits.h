// The limits that a schema sets to numbers, lengths and sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "grammar/json_text.h"
#include "grammar/schema_document.h"
#include "kvasir/status.h"

namespace kvasir {

// Returns the value of a keyword such as "minItems"; absent where the schema does not have it.
// Errors of all three: kInvalidArgument names the keyword's path; a value is wrong, or no number is
// possible.
Result<std::optional<uint32_t>> CountAt(const SchemaPlace& place, std::string_view keyword);
Result<IntegerBounds> IntegerBoundsOf(const SchemaPlace& place);
Result<NumberBounds> NumberBoundsOf(const SchemaPlace& place);

}  // namespace kvasir
