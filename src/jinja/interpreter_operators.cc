// Interpreter: arithmetic, with Python's rules.
#include <fmt/format.h>

#include <cmath>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"

namespace kvasir::jinja {
namespace {

Origin Merge(const Origin& a, const Origin& b) {
  return {a.message ? a.message : b.message, a.input || b.input};
}

// Computes base ** exponent; false on overflow. REQUIRES: exponent >= 0.
bool IntegerPower(int64_t base, int64_t exponent, int64_t* out) {
  int64_t power = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(power, base, &power)) return false;
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return false;
  }
  *out = power;
  return true;
}

int64_t FloorDivide(int64_t a, int64_t b) { return a / b - ((a % b != 0 && (a < 0) != (b < 0))); }

double FloorModulo(double a, double b) {
  const double r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

Value Integers(Interpreter& run, std::string_view op, int64_t a, int64_t b, Origin origin) {
  int64_t out = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &out);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &out);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &out);
  } else if (op == "**") {
    if (b < 0) return Value(std::pow(double(a), double(b)), origin);
    overflow = !IntegerPower(a, b, &out);
  } else if (b == 0) {
    return run.Fail("division by zero");
  } else if (op == "/") {
    return Value(double(a) / double(b), origin);
  } else if (b == -1) {  // the one division that can overflow
    overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &out);
  } else {
    out = op == "//" ? FloorDivide(a, b) : a - FloorDivide(a, b) * b;
  }
  return overflow ? run.Fail("integer overflow") : FromInt(out, origin);
}

Value Floats(Interpreter& run, std::string_view op, double a, double b, Origin origin) {
  if (op == "+") return Value(a + b, origin);
  if (op == "-") return Value(a - b, origin);
  if (op == "*") return Value(a * b, origin);
  if (op == "**") return Value(std::pow(a, b), origin);
  if (b == 0) return run.Fail("division by zero");
  if (op == "/") return Value(a / b, origin);
  return Value(op == "//" ? std::floor(a / b) : FloorModulo(a, b), origin);
}

// Computes sequence * times, of a string or list.
Value RepeatValue(Interpreter& run, const Value& sequence, int64_t times) {
  if (sequence.is_string()) return FromText(Repeat(run, sequence.text(), times));
  const std::vector<Value>& items = sequence.list()->items;
  std::vector<Value> out;
  for (int64_t i = 0; i < times && !items.empty(); ++i) {
    if (!run.Charge(items.size())) return Value();
    out.insert(out.end(), items.begin(), items.end());
  }
  return FromItems(std::move(out), sequence.list()->kind);
}

bool Repeatable(const Value& value) {
  return value.is_string() || (value.list() && (value.list()->kind == List::Kind::kList ||
                                                value.list()->kind == List::Kind::kTuple));
}

}  // namespace

Value Interpreter::Binary(std::string_view op, const Value& a, const Value& b) {
  if (failed_) return Value();
  if (a.is_string() && op == "%") return FormatPercent(*this, a.text(), b);
  if (a.is_undefined() || b.is_undefined()) return FailUndefined(a.is_undefined() ? a : b);
  const Origin origin = Merge(a.origin, b.origin);
  if (a.is_integer() && b.is_integer())
    return Integers(*this, op, a.integer(), b.integer(), origin);
  if (a.is_number() && b.is_number()) return Floats(*this, op, a.number(), b.number(), origin);
  if (op == "+" && a.is_string() && b.is_string()) {
    if (!Charge(WeightOf(a) + WeightOf(b))) return Value();
    const bool is_markup = a.is_markup || b.is_markup;
    const auto part = [is_markup](const Value& of) {
      return is_markup && !of.is_markup ? EscapeMarks(of.text()) : of.text();
    };
    Text out = part(a);
    out.Append(part(b));
    Value sum = FromText(std::move(out));
    sum.is_markup = is_markup;
    return sum;
  }
  if (op == "+" && a.list() && b.list() && a.list()->kind == b.list()->kind && Repeatable(a)) {
    if (!Charge(4 * (a.list()->items.size() + b.list()->items.size()))) return Value();
    std::vector<Value> out = a.list()->items;
    out.insert(out.end(), b.list()->items.begin(), b.list()->items.end());
    return FromItems(std::move(out), a.list()->kind);
  }
  if (op == "*" && Repeatable(a) && b.is_integer()) return RepeatValue(*this, a, b.integer());
  if (op == "*" && Repeatable(b) && a.is_integer()) return RepeatValue(*this, b, a.integer());
  if (op == "+" && a.is_string()) {
    return Fail(fmt::format("can only concatenate str (not \"{}\") to str", TypeName(b)));
  }
  return Fail(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", op, TypeName(a),
                          TypeName(b)));
}

}  // namespace kvasir::jinja
