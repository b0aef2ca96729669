// The table of filters, filled by the files that hold them.
#pragma once

#include <map>
#include <string_view>

#include "text/jinja_builtins.h"

namespace kvasir::jinja {

using Filter = Value (*)(Interpreter&, const Value&, const Arguments&);
using FilterTable = std::map<std::string_view, Filter>;

void AddTextFilters(FilterTable& table);
void AddSequenceFilters(FilterTable& table);

}  // namespace kvasir::jinja
