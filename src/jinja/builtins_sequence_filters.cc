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

// Returns the character at `begin` of a text.
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

// Puts `separator` between the characters of a text.
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
  if (!Truthy(v)) return FromItems({}, List::Kind::kGenerator, "sync_do_map");  // None too
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

// Does select, reject, selectattr and rejectattr.
template <bool by_attribute, bool keeps>
Value Select(Interpreter& run, const Value& v, const Arguments& arguments) {
  if (!Truthy(v)) return FromItems({}, List::Kind::kGenerator, "select_or_reject");  // None too
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
}

}  // namespace kvasir::jinja
