// Filters that compare items: sort, dictsort, unique, min, max and groupby.
#include <algorithm>
#include <utility>

#include "jinja/arguments.h"
#include "jinja/builtins.h"

namespace kvasir::jinja {
namespace {

// Returns the key that sort, unique and others compare: the attribute if given, in lower case by
// default.
Value Key(Interpreter& run, const Value& item, const Value* attribute, bool case_sensitive) {
  Value key = attribute && !attribute->is_none() ? Path(run, item, *attribute) : item;
  if (case_sensitive || !key.is_string()) return key;
  return run.Charge(WeightOf(key)) ? FromText(Lower(key.text())) : Value();
}

// Sorts items by their keys; fails where Python could not compare them.
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

}  // namespace

void AddOrderFilters(FilterTable& table) {
  // These filters visit items and charge for each of them.
  const auto add = [&table](std::string_view name, FilterFunction apply) {
    table[name] = {apply, /*reads_all=*/false};
  };
  add("sort", Sort);
  add("dictsort", DictSort);
  add("unique", Unique);
  add("min", Extreme<false>);
  add("max", Extreme<true>);
  add("groupby", GroupBy);
}

}  // namespace kvasir::jinja
