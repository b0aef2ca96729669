// The table of filters, filled by the files that hold them.
#pragma once

#include <map>
#include <string_view>

#include "text/jinja_builtins.h"

namespace kvasir::jinja {

using FilterFunction = Value (*)(Interpreter&, const Value&, const Arguments&);
struct Filter {
  FilterFunction apply;
  bool reads_all;  // the whole weight of its input is charged before
};
using FilterTable = std::map<std::string_view, Filter>;

void AddTextFilters(FilterTable& table);
void AddSequenceFilters(FilterTable& table);

}  // namespace kvasir::jinja
