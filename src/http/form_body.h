// Parses a request's body that is an HTML form, as browsers, curl and clients of LibreTranslate
// send it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

using FormFields = std::vector<std::pair<std::string, std::string>>;  // name, value; as sent

// Tells whether a body is a form: multipart/form-data by its type; else what does not begin with
// `{` and has no type of JSON. (`curl -d '{...}'` says that it sends a form.)
bool IsForm(std::string_view body, std::string_view content_type);

// Returns the fields of application/x-www-form-urlencoded (any other type too) or of
// multipart/form-data (RFC 7578). Line ends are one '\n' each, as LibreTranslate reads them.
// kInvalidArgument, of the field "form": more than 64 fields, a name of more than 64 bytes, text
// that is not UTF-8, a `%` without two digits, a multipart body without a boundary or end, or with
// a file. O(body).
Result<FormFields> ParseForm(std::string_view body, std::string_view content_type);

}  // namespace kvasir
