// Filters of lists, dicts and values of any kind.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "jinja/arguments.h"
#include "jinja/builtins.h"

namespace kvasir::jinja {
namespace {

Value Length(Interpreter& run, const Value& v, const Arguments&) {
  if (v.is_undefined()) return FromInt(0);
  if (v.is_string() && !run.ChargeText(v.text().size())) return Value();
  if (v.is_string()) return FromInt(CharCount(v.text().view()));
  if (const Dict* dict = v.dict()) return FromInt(dict->items.size());
  if (const List* list = v.list(); list && list->kind != List::Kind::kGenerator) {
    return FromInt(list->items.size());
  }
  return run.Fail(fmt::format("object of type '{}' has no len()", TypeName(v)));
}

Value Default(Interpreter&, const Value& v, const Arguments& arguments) {
  const bool replaces =
      v.is_undefined() || (BoolArgument(arguments, 1, "boolean", false) && !Truthy(v));
  if (!replaces) return v;
  const Value* otherwise = arguments.Find(0, "default_value");
  return otherwise ? *otherwise : FromString("");
}

// The character at `begin` of a text.
Value CharValue(const Text& text, size_t begin) {
  return FromText(text.Slice(begin, begin + CharSize(text.view(), begin)));
}

Value First(Interpreter& run, const Value& v, const Arguments&) {
  if (const List* list = v.list(); list && list->taken < list->items.size()) {
    return list->items[list->kind == List::Kind::kGenerator ? list->taken++ : 0];
  }
  if (v.is_string() && !v.text().empty()) return CharValue(v.text(), 0);
  const std::vector<Value> items = run.Iterate(v);
  return items.empty() ? run.Undefine("No first item, sequence was empty.") : items.front();
}

Value Last(Interpreter& run, const Value& v, const Arguments&) {
  const List* list = v.list();
  if (list && list->kind == List::Kind::kGenerator) {
    return run.Fail("'generator' object is not reversible");
  }
  if (list && !list->items.empty()) return list->items.back();
  if (v.is_string() && !v.text().empty()) {
    return CharValue(v.text(), PreviousChar(v.text().view(), v.text().size()));
  }
  const std::vector<Value> items = run.Iterate(v);
  return items.empty() ? run.Undefine("No last item, sequence was empty.") : items.back();
}

Value Reverse(Interpreter& run, const Value& v, const Arguments&) {
  if (v.is_string()) {
    const Text& text = v.text();
    if (!run.Charge(text.size())) return Value();
    Text out;
    out.Reserve(text.size());
    for (size_t end = text.size(), begin = 0; end > 0; end = begin) {
      begin = PreviousChar(text.view(), end);
      out.Append(text, begin, end);
    }
    return FromText(std::move(out));
  }
  std::vector<Value> items = run.Iterate(v);
  std::reverse(items.begin(), items.end());
  return FromItems(std::move(items), List::Kind::kGenerator, "reversed");
}

// item.a.b.0 for the attribute "a.b.0"; a number is a subscript.
Value Path(Interpreter& run, Value item, const Value& attribute) {
  if (!attribute.is_string()) return run.Subscript(item, attribute);
  if (!run.ChargeText(4 * attribute.text().size())) return Value();
  std::string_view path = attribute.text().view();
  while (!run.failed()) {
    if (!run.Charge(4)) break;
    const size_t dot = std::min(path.find('.'), path.size());
    const std::string_view part = path.substr(0, dot);
    const bool digits =
        !part.empty() && part.size() < 10 && std::all_of(part.begin(), part.end(), ::isdigit);
    item =
        digits ? run.Subscript(item, FromInt(std::stoll(std::string(part)))) : run.Item(item, part);
    if (dot == path.size()) break;
    path.remove_prefix(dot + 1);
  }
  return item;
}

// The key that sort, unique and others compare: the attribute if given, in lower case by default.
Value Key(Interpreter& run, const Value& item, const Value* attribute, bool case_sensitive) {
  Value key = attribute && !attribute->is_none() ? Path(run, item, *attribute) : item;
  if (case_sensitive || !key.is_string()) return key;
  return run.Charge(WeightOf(key)) ? FromText(Lower(key.text())) : Value();
}

// Items with their keys, in order of the keys; fails where Python could not compare them.
std::vector<Value> Sorted(Interpreter& run, std::vector<std::pair<Value, Value>> keyed,
                          bool reverse) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    if (run.failed()) return false;
    return reverse ? run.CompareWith("<", b.first, a.first)
                   : run.CompareWith("<", a.first, b.first);
  });
  std::vector<Value> out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return out;
}

Value Sort(Interpreter& run, const Value& v, const Arguments& arguments) {
  const bool case_sensitive = BoolArgument(arguments, 1, "case_sensitive", false);
  const Value* attribute = arguments.Find(2, "attribute");
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : run.Iterate(v)) {
    std::vector<Value> keys;
    std::string_view rest = attribute && attribute->is_string() ? attribute->text().view() : "";
    do {  // "a,b" sorts by a, then by b
      const size_t comma = std::min(rest.find(','), rest.size());
      const Value part = FromString(rest.substr(0, comma));
      const bool one = attribute && attribute->is_string();
      keys.push_back(Key(run, item, one ? &part : attribute, case_sensitive));
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    } while (!rest.empty());
    Value key = keys.size() == 1 ? keys[0] : FromItems(std::move(keys));
    keyed.emplace_back(std::move(key), item);
  }
  return FromItems(Sorted(run, std::move(keyed), BoolArgument(arguments, 0, "reverse", false)));
}

Value DictSort(Interpreter& run, const Value& v, const Arguments& arguments) {
  const Dict* dict = v.dict();
  if (!dict) return run.Fail("dictsort takes a dict");
  const bool case_sensitive = BoolArgument(arguments, 0, "case_sensitive", false);
  const bool by_value = TextArgument(arguments, 1, "by", "key").bytes() == "value";
  if (!run.Charge(4 * dict->items.size())) return Value();
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : dict->items) {
    keyed.emplace_back(Key(run, by_value ? value : key, nullptr, case_sensitive),
                       FromItems({key, value}, List::Kind::kTuple));
  }
  return FromItems(Sorted(run, std::move(keyed), BoolArgument(arguments, 2, "reverse", false)));
}

Value Unique(Interpreter& run, const Value& v, const Arguments& arguments) {
  const bool case_sensitive = BoolArgument(arguments, 0, "case_sensitive", false);
  const Value* attribute = arguments.Find(1, "attribute");
  Dict seen;
  std::vector<Value> out;
  for (const Value& item : run.Iterate(v)) {
    Value key = Key(run, item, attribute, case_sensitive);
    if (const std::string why = WhyUnhashable(key); !why.empty()) return run.Fail(why);
    const bool indexed = key.is_string() || (key.is_number() && key.number() == key.number());
    if (!run.Charge(WeightOf(key) + (indexed ? 0 : out.size()))) return Value();
    if (seen.Find(key)) continue;
    seen.Append(std::move(key), Value());
    out.push_back(item);
  }
  return FromItems(std::move(out), List::Kind::kGenerator, "do_unique");
}

template <bool largest>
Value Extreme(Interpreter& run, const Value& v, const Arguments& arguments) {
  const bool case_sensitive = BoolArgument(arguments, 0, "case_sensitive", false);
  const Value* attribute = arguments.Find(1, "attribute");
  const std::vector<Value> items = run.Iterate(v);
  if (items.empty()) return run.Undefine("No aggregated item, sequence was empty.");
  const Value* best = &items[0];
  Value best_key = Key(run, *best, attribute, case_sensitive);
  for (size_t i = 1; i < items.size() && !run.failed(); ++i) {
    Value key = Key(run, items[i], attribute, case_sensitive);
    if (!run.CompareWith(largest ? ">" : "<", key, best_key)) continue;
    best = &items[i];
    best_key = std::move(key);
  }
  return *best;
}

Value Sum(Interpreter& run, const Value& v, const Arguments& arguments) {
  const Value* attribute = arguments.Find(0, "attribute");
  const Value* start = arguments.Find(1, "start");
  Value total = start ? *start : FromInt(0);
  for (const Value& item : run.Iterate(v)) {
    total = run.Binary("+", total,
                       attribute && !attribute->is_none() ? Path(run, item, *attribute) : item);
  }
  return total;
}

// The characters of a text with `separator` between them.
Value SpreadOut(Interpreter& run, const Text& text, const Text& separator) {
  Text out;
  for (size_t i = 0, n = 0; i < text.size(); i += n) {
    n = CharSize(text.view(), i);
    if (!run.ChargeText(separator.size())) return Value();
    if (i > 0) out.Append(separator);
    out.Append(text, i, i + n);
  }
  return FromText(std::move(out));
}

Value JoinFilter(Interpreter& run, const Value& v, const Arguments& arguments) {
  const Text separator = TextArgument(arguments, 0, "d", "");
  if (v.is_string() && !arguments.Find(1, "attribute")) return SpreadOut(run, v.text(), separator);
  std::vector<Value> items = run.Iterate(v);
  if (const Value* attribute = arguments.Find(1, "attribute"); attribute && !attribute->is_none()) {
    for (Value& item : items) item = Path(run, item, *attribute);
  }
  return FromText(Join(run, items, separator));
}

Arguments Rest(const Arguments& arguments, size_t first) {
  Arguments out;
  for (size_t i = first; i < arguments.positional.size(); ++i) {
    out.positional.push_back(arguments.positional[i]);
  }
  out.named = arguments.named;
  return out;
}

Value Map(Interpreter& run, const Value& v, const Arguments& arguments) {
  std::vector<Value> out;
  if (arguments.positional.empty()) {
    const Value* attribute = arguments.Find(0, "attribute");
    const Value* otherwise = arguments.Find(1, "default");
    if (!attribute) return run.Fail("map takes a filter or an attribute");
    for (const Value& item : run.Iterate(v)) {
      Value found = Path(run, item, *attribute);
      if (found.is_undefined() && otherwise) found = *otherwise;
      out.push_back(std::move(found));
    }
    return FromItems(std::move(out), List::Kind::kGenerator, "sync_do_map");
  }
  const std::string name = ToText(arguments.positional[0]).bytes();
  if (!IsFilter(name))
    return run.Fail(fmt::format("unknown filter '{}'", name), Code::kUnsupported);
  const Arguments rest = Rest(arguments, 1);
  for (const Value& item : run.Iterate(v)) {
    out.push_back(ApplyFilter(run, name, item, rest));
    if (run.failed()) return Value();
  }
  return FromItems(std::move(out), List::Kind::kGenerator, "sync_do_map");
}

// select, reject, selectattr and rejectattr.
template <bool by_attribute, bool keeps>
Value Select(Interpreter& run, const Value& v, const Arguments& arguments) {
  const size_t test_at = by_attribute ? 1 : 0;
  if (arguments.positional.size() < test_at) return run.Fail("missing the name of an attribute");
  const bool has_test = arguments.positional.size() > test_at;
  const std::string test = has_test ? ToText(arguments.positional[test_at]).bytes() : "";
  if (has_test && !IsTest(test)) {
    return run.Fail(fmt::format("unknown test '{}'", test), Code::kUnsupported);
  }
  const Arguments rest = Rest(arguments, test_at + 1);
  std::vector<Value> out;
  for (const Value& item : run.Iterate(v)) {
    const Value value = by_attribute ? Path(run, item, arguments.positional[0]) : item;
    if (run.failed()) return Value();
    const bool passes = has_test ? ApplyTest(run, test, value, rest) : Truthy(value);
    if (passes == keeps) out.push_back(item);
  }
  return FromItems(std::move(out), List::Kind::kGenerator, "select_or_reject");
}

Value Items(Interpreter& run, const Value& v, const Arguments&) {
  if (v.is_undefined()) return FromItems({}, List::Kind::kGenerator, "do_items");
  if (!v.dict()) return run.Fail("Can only get item pairs from a mapping.");
  if (!run.Charge(4 * v.dict()->items.size())) return Value();
  std::vector<Value> out;
  out.reserve(v.dict()->items.size());
  for (const auto& [key, value] : v.dict()->items) {
    out.push_back(FromItems({key, value}, List::Kind::kTuple));
  }
  return FromItems(std::move(out), List::Kind::kGenerator, "do_items");
}

Value Batch(Interpreter& run, const Value& v, const Arguments& arguments) {
  const int64_t count = IntArgument(run, arguments, 0, "linecount", 0);
  const Value* fill = arguments.Find(1, "fill_with");
  std::vector<Value> out, row;
  for (const Value& item : run.Iterate(v)) {
    if (static_cast<int64_t>(row.size()) == count) out.push_back(FromItems(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    const bool fills = fill && !fill->is_none();
    while (fills && static_cast<int64_t>(row.size()) < count && run.Charge(4)) {
      row.push_back(*fill);
    }
    out.push_back(FromItems(std::move(row)));
  }
  return FromItems(std::move(out), List::Kind::kGenerator, "do_batch");
}

Value SliceFilter(Interpreter& run, const Value& v, const Arguments& arguments) {
  const int64_t slices = IntArgument(run, arguments, 0, "slices", 0);
  const Value* fill = arguments.Find(1, "fill_with");
  const std::vector<Value> items = run.Iterate(v);
  if (slices <= 0) return run.Fail("slice takes a positive number");
  const int64_t per_slice = static_cast<int64_t>(items.size()) / slices;
  const int64_t with_extra = static_cast<int64_t>(items.size()) % slices;
  std::vector<Value> out;
  size_t at = 0;
  for (int64_t i = 0; i < slices && run.Charge(16); ++i) {
    const size_t end = at + per_slice + (i < with_extra ? 1 : 0);
    std::vector<Value> row(items.begin() + at, items.begin() + end);
    if (fill && !fill->is_none() && i >= with_extra) row.push_back(*fill);
    out.push_back(FromItems(std::move(row)));
    at = end;
  }
  return FromItems(std::move(out), List::Kind::kGenerator, "do_slice");
}

Value GroupBy(Interpreter& run, const Value& v, const Arguments& arguments) {
  const Value* attribute = arguments.Find(0, "attribute");
  const Value* otherwise = arguments.Find(1, "default");
  const bool case_sensitive = BoolArgument(arguments, 2, "case_sensitive", false);
  if (!attribute) return run.Fail("groupby takes an attribute");
  const auto key_of = [&](const Value& item) {
    Value key = Path(run, item, *attribute);
    return key.is_undefined() && otherwise ? *otherwise : key;
  };
  const auto folded = [&](const Value& key) { return Key(run, key, nullptr, case_sensitive); };
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : run.Iterate(v)) keyed.emplace_back(folded(key_of(item)), item);
  std::vector<Value> out, group;
  Value group_key;
  const auto flush = [&] {
    if (!group.empty()) {
      const Value name = key_of(group[0]);
      out.push_back(FromItems({name, FromItems(std::exchange(group, {}))}, List::Kind::kTuple));
    }
  };
  for (const Value& item : Sorted(run, std::move(keyed), false)) {
    Value key = folded(key_of(item));
    if (!run.Charge(std::min(WeightOf(key), WeightOf(group_key)))) return Value();
    if (!Equal(key, group_key)) flush();
    group_key = std::move(key);
    group.push_back(item);
  }
  flush();
  return FromItems(std::move(out));
}

const FilterTable& Filters() {
  static const FilterTable kFilters = [] {
    FilterTable table;
    AddTextFilters(table);
    AddSequenceFilters(table);
    return table;
  }();
  return kFilters;
}

}  // namespace

void AddSequenceFilters(FilterTable& table) {
  // These filters visit items and charge for each of them.
  const auto add = [&table](std::string_view name, FilterFunction apply) {
    table[name] = {apply, /*reads_all=*/false};
  };
  add("length", Length);
  add("count", Length);
  add("default", Default);
  add("d", Default);
  add("first", First);
  add("last", Last);
  add("reverse", Reverse);
  add("list",
      [](Interpreter& run, const Value& v, const Arguments&) { return FromItems(run.Iterate(v)); });
  add("attr", [](Interpreter& run, const Value& v, const Arguments& arguments) {
    if (v.dict()) return run.Undefine("'dict object' has no such attribute");
    return run.Attribute(v, TextArgument(arguments, 0, "name", "").view());
  });
  add("sort", Sort);
  add("dictsort", DictSort);
  add("unique", Unique);
  add("min", Extreme<false>);
  add("max", Extreme<true>);
  add("sum", Sum);
  add("join", JoinFilter);
  add("map", Map);
  add("select", Select<false, true>);
  add("reject", Select<false, false>);
  add("selectattr", Select<true, true>);
  add("rejectattr", Select<true, false>);
  add("items", Items);
  add("batch", Batch);
  add("slice", SliceFilter);
  add("groupby", GroupBy);
}

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

}  // namespace kvasir::jinja
