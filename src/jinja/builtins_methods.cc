// Methods of dicts, lists and `loop`, and which methods a value has.
#include <fmt/format.h>

#include <algorithm>

#include "jinja/arguments.h"
#include "jinja/builtins.h"

namespace kvasir::jinja {
namespace {

Value DictMethod(Interpreter& run, const Value& self, std::string_view name,
                 const Arguments& arguments) {
  const Dict& dict = *self.dict();
  if (name == "copy") return self;
  if (name == "get") {
    const Value* key = arguments.Find(0, "key");
    if (!key) return run.Fail("get takes a key");
    if (const Value* found = dict.Find(*key)) return *found;
    const Value* otherwise = arguments.Find(1, "default");
    return otherwise ? *otherwise : Value(None{});
  }
  if (!run.Charge(2 * dict.items.size())) return Value();
  std::vector<Value> items;
  items.reserve(dict.items.size());
  for (const auto& [key, value] : dict.items) {
    items.push_back(name == "keys"     ? key
                    : name == "values" ? value
                                       : FromItems({key, value}, List::Kind::kTuple));
  }
  return FromItems(std::move(items), List::Kind::kView, "dict_" + std::string(name));
}

Value ListMethod(Interpreter& run, const Value& self, std::string_view name,
                 const Arguments& arguments) {
  if (name == "copy") return self;
  const Value* wanted = arguments.Find(0, "value");
  if (!wanted) return run.Fail(fmt::format("{} takes an argument", name));
  const std::vector<Value>& items = self.list()->items;
  if (!run.Charge(WeightOf(self))) return Value();  // as much as all comparisons
  const auto equal = [&](const Value& item) { return Equal(item, *wanted); };
  if (name == "count") return FromInt(std::count_if(items.begin(), items.end(), equal));
  const auto found = std::find_if(items.begin(), items.end(), equal);
  if (found == items.end()) return run.Fail("the value is not in the list");
  return FromInt(found - items.begin());
}

Value LoopMethod(Interpreter& run, Loop& loop, std::string_view name, const Arguments& arguments) {
  const std::vector<Value>& values = arguments.positional;
  if (name == "cycle") {
    if (values.empty()) return run.Fail("no items for cycling given");
    return values[loop.index % values.size()];
  }
  for (const Value& value : values) run.Charge(WeightOf(value));
  if (run.failed()) return Value();
  const bool same =
      loop.has_changed && std::equal(values.begin(), values.end(), loop.last_changed.begin(),
                                     loop.last_changed.end(), Equal);
  loop.has_changed = true;
  loop.last_changed = values;
  return Value(!same);
}

// Calls a method of a cycler or a joiner (builtins_functions.cc).
Value NamespaceMethod(Interpreter& run, Namespace& ns, std::string_view name,
                      const Arguments& arguments) {
  if (!arguments.positional.empty() || !arguments.named.empty()) {
    return run.Fail(std::string(name == "join" ? "a joiner" : name) + " takes no arguments");
  }
  if (name == "join") {
    if (ns.Find("used")) return *ns.Find("sep");
    ns.Set("used", Value(true));
    return FromString("");
  }
  const Value* items = ns.Find("items");
  const Value* pos = ns.Find("pos");
  if (!items->list() || items->list()->items.empty() || !pos->is_integer()) {
    return run.Fail("the template has changed its cycler");
  }
  const std::vector<Value>& all = items->list()->items;
  const size_t next = name == "reset" ? 0 : (static_cast<size_t>(pos->integer()) + 1) % all.size();
  const Value before = name == "reset" ? Value(None{}) : *ns.Find("current");
  const Value now = all[next];
  ns.Set("pos", FromInt(static_cast<int64_t>(next)));
  ns.Set("current", now);
  return before;
}

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

MethodKind FindMethod(const Value& self, std::string_view name) {
  bool safe = false, mutating = false;
  if (self.is_string()) {
    safe = IsTextMethod(name);
  } else if (self.dict()) {
    safe = IsOneOf(name, {"items", "keys", "values", "get", "copy"});
    mutating = IsOneOf(name, {"clear", "pop", "popitem", "setdefault", "update"});
  } else if (const List* list = self.list()) {
    const bool is_list = list->kind == List::Kind::kList;
    const bool counts =
        is_list || list->kind == List::Kind::kTuple || list->kind == List::Kind::kRange;
    safe = (counts && IsOneOf(name, {"count", "index"})) || (is_list && name == "copy");
    mutating = is_list && IsOneOf(name, {"append", "clear", "pop", "reverse", "insert", "sort",
                                         "extend", "remove"});
  } else if (self.loop()) {
    safe = IsOneOf(name, {"cycle", "changed"});
  }
  return mutating ? MethodKind::kMutating : safe ? MethodKind::kSafe : MethodKind::kNone;
}

Value CallMethod(Interpreter& run, const Value& self, std::string_view name,
                 const Arguments& arguments) {
  if (!run.Charge(1)) return Value();
  if (self.is_string()) return CallTextMethod(run, self.text(), name, arguments);
  if (self.dict()) return DictMethod(run, self, name, arguments);
  if (self.ns()) return NamespaceMethod(run, *self.ns(), name, arguments);
  if (self.loop()) return LoopMethod(run, *self.loop(), name, arguments);
  return ListMethod(run, self, name, arguments);
}

}  // namespace kvasir::jinja
