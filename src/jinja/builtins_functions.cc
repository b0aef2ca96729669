// Global functions: those of jinja2 and those that transformers adds.
#include <fmt/format.h>

#include <ctime>
#include <map>

#include "jinja/arguments.h"
#include "jinja/builtins.h"

namespace kvasir::jinja {
namespace {

using Function = Value (*)(Interpreter&, const Arguments&);

Value Range(Interpreter& run, const Arguments& arguments) {
  const std::vector<Value>& given = arguments.positional;
  if (given.empty() || given.size() > 3) return run.Fail("range takes one to three integers");
  for (const Value& value : given) {
    if (value.is_undefined()) return run.FailUndefined(value);
    if (!value.is_integer()) return run.Fail("range takes integers");
  }
  const int64_t begin = given.size() > 1 ? given[0].integer() : 0;
  const int64_t end = given.size() > 1 ? given[1].integer() : given[0].integer();
  const int64_t step = given.size() > 2 ? given[2].integer() : 1;
  if (step == 0) return run.Fail("range step must not be zero");
  const bool runs = step > 0 ? begin < end : begin > end;
  // Differences in unsigned arithmetic cannot overflow.
  const uint64_t distance =
      step > 0 ? uint64_t(end) - uint64_t(begin) : uint64_t(begin) - uint64_t(end);
  const uint64_t stride = step > 0 ? uint64_t(step) : -uint64_t(step);
  const uint64_t count = runs ? (distance - 1) / stride + 1 : 0;
  constexpr uint64_t kMaxRange = 100'000;  // jinja2's limit in a sandbox
  if (count > kMaxRange) return run.Fail(fmt::format("range too big: at most {}", kMaxRange));
  if (!run.Charge(count)) return Value();
  std::vector<Value> items;
  for (uint64_t i = 0; i < count; ++i) items.push_back(FromInt(begin + int64_t(i) * step));
  std::string name = step == 1 ? fmt::format("range({}, {})", begin, end)
                               : fmt::format("range({}, {}, {})", begin, end, step);
  return FromItems(std::move(items), List::Kind::kRange, std::move(name));
}

// Reads dict(mapping or pairs, name=value ...)
bool ReadDict(Interpreter& run, const Arguments& arguments, Dict* dict) {
  for (const Value& source : arguments.positional) {
    if (source.dict()) {
      if (!run.Charge(2 * source.dict()->items.size())) return false;
      *dict = *source.dict();
      continue;
    }
    for (const Value& pair : run.Iterate(source)) {
      const std::vector<Value> items = run.Iterate(pair);
      if (items.size() != 2) return run.Fail("dict takes pairs"), false;
      if (const std::string why = WhyUnhashable(items[0]); !why.empty()) {
        return run.Fail(why), false;
      }
      // Keys that are neither text nor number are compared one by one.
      const bool looks_up = items[0].is_string() || items[0].is_number();
      if (!run.Charge(looks_up ? 4 : 4 + dict->items.size())) return false;
      dict->Set(items[0], items[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) dict->Set(FromString(name), value);
  return !run.failed();
}

Value MakeDict(Interpreter& run, const Arguments& arguments) {
  Dict dict;
  return ReadDict(run, arguments, &dict) ? FromDict(std::move(dict)) : Value();
}

Value MakeNamespace(Interpreter& run, const Arguments& arguments) {
  Dict dict;
  if (!ReadDict(run, arguments, &dict)) return Value();
  std::vector<std::pair<std::string, Value>> items;
  for (auto& [key, value] : dict.items) items.emplace_back(ToText(key).bytes(), value);
  return run.NewNamespace(std::move(items));
}

Value MethodOf(const Value& self, const char* name) {
  return Value(std::make_shared<const Callable>(
      Callable{.kind = Callable::Kind::kMethod, .name = name, .self = self}));
}

// Makes a namespace whose `current` its next() moves on.
Value MakeCycler(Interpreter& run, const Arguments& arguments) {
  const std::vector<Value>& given = arguments.positional;
  if (given.empty()) return run.Fail("at least one item has to be provided");
  if (!run.Charge(given.size())) return Value();
  Value cycler =
      run.NewNamespace({{"current", given[0]}, {"items", FromItems(given)}, {"pos", FromInt(0)}});
  for (const char* name : {"next", "reset"}) cycler.ns()->Set(name, MethodOf(cycler, name));
  return cycler;
}

// Gives nothing when it is first called, and then the separator.
Value MakeJoiner(Interpreter& run, const Arguments& arguments) {
  const Value* separator = arguments.Find(0, "sep");
  if (arguments.positional.size() + arguments.named.size() > (separator ? 1 : 0)) {
    return run.Fail("joiner takes one argument, sep");
  }
  const Value state = run.NewNamespace({{"sep", separator ? *separator : FromString(", ")}});
  return MethodOf(state, "join");
}

Value RaiseException(Interpreter& run, const Arguments& arguments) {
  return run.Raise(TextArgument(arguments, 0, "message", "the chat template refuses").bytes());
}

Value StrftimeNow(Interpreter& run, const Arguments& arguments) {
  const std::string format = TextArgument(arguments, 0, "format", "%Y-%m-%d").bytes();
  constexpr size_t kMaxFormat = 1000;
  if (!run.Charge(1000)) return Value();  // the buffer
  if (format.size() > kMaxFormat) return run.Fail("strftime_now: the format is too long");
  const std::time_t now = static_cast<std::time_t>(run.ReadClock());
  std::tm local{};
  localtime_r(&now, &local);
  std::string out(64 * 1024, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  const Value* given = arguments.Find(0, "format");
  return FromString(out, given && given->is_string() ? given->text().Summary() : Origin{});
}

const std::map<std::string_view, Function>& Functions() {
  static const std::map<std::string_view, Function> kFunctions = {
      {"range", Range},
      {"dict", MakeDict},
      {"namespace", MakeNamespace},
      {"raise_exception", RaiseException},
      {"strftime_now", StrftimeNow},
      {"cycler", MakeCycler},
      {"joiner", MakeJoiner},
  };
  return kFunctions;
}

}  // namespace

std::vector<std::string_view> FunctionNames() {
  std::vector<std::string_view> names;
  for (const auto& [name, function] : Functions()) names.push_back(name);
  return names;
}

bool IsFunction(std::string_view name) { return Functions().contains(name); }

Value CallFunction(Interpreter& run, std::string_view name, const Arguments& arguments) {
  return Functions().at(name)(run, arguments);
}

}  // namespace kvasir::jinja
