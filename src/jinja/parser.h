// Parses template source to a syntax tree: the grammar of jinja2 with its loopcontrols extension
// and the generation block of transformers.
#pragma once

#include <string_view>
#include <vector>

#include "jinja/ast.h"
#include "kvasir/status.h"

namespace kvasir::jinja {

// REQUIRES: `source` comes from NormalizeNewlines. kInvalidArgument with line and column on a
// syntax error; kUnsupported names a statement, filter or test that the interpreter does not know.
Result<std::vector<NodePtr>> ParseTemplate(std::string_view source);

}  // namespace kvasir::jinja
