// The tests of `is`.
#include <map>

#include "jinja/arguments.h"
#include "jinja/builtins.h"

namespace kvasir::jinja {
namespace {

using Test = bool (*)(Interpreter&, const Value&, const Arguments&);

template <typename T>
bool IsKind(Interpreter&, const Value& v, const Arguments&) {
  return v.Is<T>();
}

// Compares with the test's argument.
template <const char* op>
bool Comparison(Interpreter& run, const Value& v, const Arguments& arguments) {
  const Value* other = arguments.Find(0, "other");
  if (!other) return run.Fail("the test takes an argument"), false;
  return run.CompareWith(op, v, *other);
}
constexpr char kEq[] = "==", kNe[] = "!=", kLt[] = "<", kLe[] = "<=", kGt[] = ">",
               kGe[] = ">=", kIn[] = "in";

bool Divisible(Interpreter& run, const Value& v, int64_t by) {
  if (v.is_undefined()) return run.FailUndefined(v), false;
  return Equal(run.Binary("%", v, FromInt(by)), FromInt(0));
}

bool IsIterable(Interpreter&, const Value& v, const Arguments&) {
  return v.is_undefined() || v.is_string() || v.list() || v.dict() || v.loop();
}

bool IsSequence(Interpreter&, const Value& v, const Arguments&) {
  const List* list = v.list();
  const bool indexed =
      list && list->kind != List::Kind::kGenerator && list->kind != List::Kind::kView;
  return indexed || v.is_string() || v.dict() != nullptr;
}

template <bool upper>
bool HasCase(Interpreter& run, const Value& v, const Arguments& arguments) {
  if (!run.Charge(WeightOf(v))) return false;
  return Truthy(CallMethod(run, FromText(ToText(v)), upper ? "isupper" : "islower", arguments));
}

bool IsSameAs(Interpreter& run, const Value& v, const Arguments& arguments) {
  const Value* other = arguments.Find(0, "other");
  return other && run.Charge(WeightOf(v)) && v.data.index() == other->data.index() &&
         Equal(v, *other);
}

const std::map<std::string_view, Test>& Tests() {
  static const std::map<std::string_view, Test> kTests = {
      {"defined", [](Interpreter&, const Value& v, const Arguments&) { return !v.is_undefined(); }},
      {"undefined", IsKind<Undefined>},
      {"none", IsKind<None>},
      {"boolean", IsKind<bool>},
      {"integer", [](Interpreter&, const Value& v,
                     const Arguments&) { return v.Is<int64_t>() || v.Is<BigInteger>(); }},
      {"float", IsKind<double>},
      {"number", [](Interpreter&, const Value& v, const Arguments&) { return v.is_number(); }},
      {"string", [](Interpreter&, const Value& v, const Arguments&) { return v.is_string(); }},
      {"mapping",
       [](Interpreter&, const Value& v, const Arguments&) { return v.dict() != nullptr; }},
      {"iterable", IsIterable},
      {"sequence", IsSequence},
      {"callable", [](Interpreter&, const Value& v,
                      const Arguments&) { return v.callable() != nullptr || v.loop() != nullptr; }},
      {"true", [](Interpreter&, const Value& v,
                  const Arguments&) { return v.is_bool() && v.integer() == 1; }},
      {"false", [](Interpreter&, const Value& v,
                   const Arguments&) { return v.is_bool() && v.integer() == 0; }},
      {"odd", [](Interpreter& run, const Value& v,
                 const Arguments&) { return !Divisible(run, v, 2) && !run.failed(); }},
      {"even",
       [](Interpreter& run, const Value& v, const Arguments&) { return Divisible(run, v, 2); }},
      {"divisibleby",
       [](Interpreter& run, const Value& v, const Arguments& arguments) {
         return Divisible(run, v, IntArgument(run, arguments, 0, "num", 0));
       }},
      {"upper", HasCase<true>},
      {"lower", HasCase<false>},
      {"sameas", IsSameAs},
      {"escaped", [](Interpreter&, const Value&, const Arguments&) { return false; }},
      {"filter",
       [](Interpreter& run, const Value& v, const Arguments&) {
         return run.Charge(WeightOf(v)) && IsFilter(ToText(v).view());
       }},
      {"test",
       [](Interpreter& run, const Value& v, const Arguments&) {
         return run.Charge(WeightOf(v)) && IsTest(ToText(v).view());
       }},
      {"in", Comparison<kIn>},
      {"eq", Comparison<kEq>},
      {"equalto", Comparison<kEq>},
      {"==", Comparison<kEq>},
      {"ne", Comparison<kNe>},
      {"!=", Comparison<kNe>},
      {"lt", Comparison<kLt>},
      {"lessthan", Comparison<kLt>},
      {"<", Comparison<kLt>},
      {"le", Comparison<kLe>},
      {"<=", Comparison<kLe>},
      {"gt", Comparison<kGt>},
      {"greaterthan", Comparison<kGt>},
      {">", Comparison<kGt>},
      {"ge", Comparison<kGe>},
      {">=", Comparison<kGe>},
  };
  return kTests;
}

}  // namespace

std::vector<std::string_view> TestNames() {
  std::vector<std::string_view> names;
  for (const auto& [name, function] : Tests()) names.push_back(name);
  return names;
}

bool IsTest(std::string_view name) { return Tests().contains(name); }

bool ApplyTest(Interpreter& run, std::string_view name, const Value& input,
               const Arguments& arguments) {
  return Tests().at(name)(run, input, arguments) && !run.failed();
}

}  // namespace kvasir::jinja
