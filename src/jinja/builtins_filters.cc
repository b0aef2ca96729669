// The table of all filters.
#include <algorithm>

#include "base/ascii.h"
#include "jinja/builtins.h"

namespace kvasir::jinja {
namespace {

const FilterTable& Filters() {
  static const FilterTable kFilters = [] {
    FilterTable table;
    AddTextFilters(table);
    AddSequenceFilters(table);
    AddOrderFilters(table);
    return table;
  }();
  return kFilters;
}

}  // namespace

bool IsFilter(std::string_view name) { return Filters().contains(name); }

std::vector<std::string_view> FilterNames() {
  std::vector<std::string_view> names;
  for (const auto& [name, filter] : Filters()) names.push_back(name);
  return names;
}

Value ApplyFilter(Interpreter& run, std::string_view name, const Value& input,
                  const Arguments& arguments) {
  const Filter& filter = Filters().find(name)->second;
  if (!(filter.reads_all ? run.ChargeRepr(input) : run.Charge(1))) return Value();
  return filter.apply(run, input, arguments);
}

Value Path(Interpreter& run, Value item, const Value& attribute) {
  if (!attribute.is_string()) return run.Subscript(item, attribute);
  if (!run.ChargeText(4 * attribute.text().size())) return Value();
  std::string_view path = attribute.text().view();
  while (!run.failed()) {
    if (!run.Charge(4)) break;
    const size_t dot = std::min(path.find('.'), path.size());
    const std::string_view part = path.substr(0, dot);
    const bool digits =
        !part.empty() && part.size() < 10 && std::ranges::all_of(part, IsAsciiDigit);
    item =
        digits ? run.Subscript(item, FromInt(std::stoll(std::string(part)))) : run.Item(item, part);
    if (dot == path.size()) break;
    path.remove_prefix(dot + 1);
  }
  return item;
}

}  // namespace kvasir::jinja
