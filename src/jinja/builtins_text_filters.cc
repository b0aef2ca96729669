// Filters of text and numbers.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/ascii.h"
#include "jinja/arguments.h"
#include "jinja/builtins.h"

namespace kvasir::jinja {
namespace {

Value Trim(Interpreter& run, const Value& v, const Arguments& arguments) {
  if (const Text* chars = StringArgument(run, arguments, 0, "chars");
      chars && !run.Charge(chars->size())) {
    return Value();
  }
  return FromText(Strip(ToText(v), Side::kBoth, StringArgument(run, arguments, 0, "chars")));
}

// Begins words only after spaces, hyphens and brackets, as jinja2's title does, unlike str.title.
Value Title(Interpreter&, const Value& v, const Arguments&) {
  bool first = true;
  return FromText(MapChars(ToText(v), [&first](char32_t code, size_t) {
    const bool was_first = first;
    first = IsSpace(code) ||
            (code < 0x80 && std::string_view("-({[<").find(char(code)) != std::string::npos);
    return was_first ? UpperOf(code) : LowerOf(code);
  }));
}

Value ReplaceFilter(Interpreter& run, const Value& v, const Arguments& arguments) {
  if (!arguments.Find(0, "old") || !arguments.Find(1, "new")) {
    return run.Fail("replace takes two strings");
  }
  const int64_t count = IntArgument(run, arguments, 2, "count", -1);
  return FromText(Replace(run, ToText(v), TextArgument(arguments, 0, "old", "").view(),
                          TextArgument(arguments, 1, "new", ""), count));
}

Value Indent(Interpreter& run, const Value& v, const Arguments& arguments) {
  const Value* given = arguments.Find(0, "width");
  const Text width = given && given->is_string()
                         ? given->text()
                         : Repeat(run, Text(" "), IntArgument(run, arguments, 0, "width", 4));
  const bool first = BoolArgument(arguments, 1, "first", false);
  const bool blank = BoolArgument(arguments, 2, "blank", false);
  Text text = ToText(v);
  const Text newline("\n", text.Summary());
  text.Append(newline);
  const std::vector<Text> lines = SplitLines(text, /*keep_ends=*/false);
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!run.Charge(1 + width.size() / 16)) return Value();
    if (i > 0) out.Append(newline);
    if (i == 0 ? first : blank || !lines[i].empty()) out.Append(width);
    out.Append(lines[i]);
  }
  return FromText(std::move(out));
}

Value AsMarkup(Value text) {
  text.is_markup = true;
  return text;
}

Value ForceEscape(Interpreter&, const Value& v, const Arguments&) {
  return AsMarkup(FromText(EscapeMarks(ToText(v))));
}

Value Escape(Interpreter& run, const Value& v, const Arguments& arguments) {
  return v.is_markup ? v : ForceEscape(run, v, arguments);
}

Value TruncateFilter(Interpreter& run, const Value& v, const Arguments& arguments) {
  const Text text = ToText(v);
  const int64_t length = IntArgument(run, arguments, 0, "length", 255);
  const bool kill = BoolArgument(arguments, 1, "killwords", false);
  const Text end = TextArgument(arguments, 2, "end", "...");
  const int64_t leeway = IntArgument(run, arguments, 3, "leeway", 5);
  if (static_cast<int64_t>(CharCount(text.view())) <= length + leeway) return FromText(text);
  const int64_t keep = length - static_cast<int64_t>(CharCount(end.view()));
  if (keep < 0) return run.Fail("truncate: the length is less than that of the end");
  Text out = text.Slice(0, CharOffset(text.view(), static_cast<size_t>(keep)));
  const size_t space = out.bytes().rfind(' ');
  if (!kill && space != std::string::npos) out = out.Slice(0, space);
  out.Append(end);
  return FromText(std::move(out));
}

Value WordCount(Interpreter&, const Value& v, const Arguments&) {
  const Text text = ToText(v);
  int64_t words = 0;
  bool inside = false;
  for (size_t i = 0; i < text.size(); i += CharSize(text.view(), i)) {
    const char32_t code = CharAt(text.view(), i);
    const bool word = IsAlpha(code) || (code >= '0' && code <= '9') || code == '_';
    words += word && !inside;
    inside = word;
  }
  return FromInt(words);
}

// Returns int(text, base) of Python; nothing where that raises ValueError.
std::optional<int64_t> ParseInteger(std::string_view view, int64_t base) {
  std::string text;
  for (size_t i = 0; i < view.size(); ++i) {
    const bool joins = view[i] == '_' && i > 0 && i + 1 < view.size() &&
                       IsAsciiAlnum(view[i - 1]) && IsAsciiAlnum(view[i + 1]);
    if (!joins) text += view[i];
  }
  const bool negative = text.starts_with('-');
  size_t at = negative || text.starts_with('+') ? 1 : 0;
  const char marker = text.size() > at + 2 && text[at] == '0' ? char(text[at + 1] | 32) : '\0';
  if ((base == 16 && marker == 'x') || (base == 8 && marker == 'o') ||
      (base == 2 && marker == 'b')) {
    at += 2;
  }
  if (at >= text.size() || base < 2 || base > 36 || text[at] == '-') return std::nullopt;
  text = (negative ? "-" : "") + text.substr(at);
  int64_t number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, static_cast<int>(base));
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<double> ParseFloat(std::string text) {
  if (text.starts_with('+')) text.erase(0, 1);
  if (text.empty() || text.find_first_of("xX(") != std::string::npos) return std::nullopt;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Value ToInt(Interpreter& run, const Value& v, const Arguments& arguments) {
  const int64_t base = IntArgument(run, arguments, 1, "base", 10);
  const Value* otherwise = arguments.Find(0, "default");
  std::optional<double> real;
  Origin origin = v.origin;
  if (v.is_integer()) return FromInt(v.integer(), origin);
  if (v.is_float()) real = v.number();
  if (v.is_string()) {
    const std::string text = Strip(v.text(), Side::kBoth, nullptr).bytes();
    origin = v.text().Summary();
    if (const auto number = ParseInteger(text, base)) return FromInt(*number, origin);
    real = ParseFloat(text);
  }
  if (v.Is<BigInteger>()) return v;
  if (real && std::fabs(*real) < 9e18) return FromInt(static_cast<int64_t>(*real), origin);
  return otherwise ? *otherwise : FromInt(0);
}

Value ToFloat(Interpreter&, const Value& v, const Arguments& arguments) {
  if (v.is_number()) return Value(v.number(), v.origin);
  if (v.is_string()) {
    if (const auto number = ParseFloat(Strip(v.text(), Side::kBoth, nullptr).bytes())) {
      return Value(*number, v.text().Summary());
    }
  }
  const Value* otherwise = arguments.Find(0, "default");
  return otherwise ? *otherwise : Value(0.0);
}

Value Round(Interpreter& run, const Value& v, const Arguments& arguments) {
  if (v.is_undefined()) return run.FailUndefined(v);
  if (!v.is_number()) return run.Fail("round takes a number");
  const int64_t precision =
      std::clamp<int64_t>(IntArgument(run, arguments, 0, "precision", 0), -300, 300);
  const std::string method = TextArgument(arguments, 1, "method", "common").bytes();
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value(std::ceil(v.number() * scale) / scale, v.origin);
  if (method == "floor") return Value(std::floor(v.number() * scale) / scale, v.origin);
  if (method != "common") return run.Fail("method must be common, ceil or floor");
  if (v.is_integer() && precision >= 0) return FromInt(v.integer(), v.origin);
  if (v.Is<BigInteger>() && precision >= 0) return v;
  // Correct rounding, as Python's: through the decimal digits of the exact value.
  if (precision >= 0 && std::isfinite(v.number())) {
    return Value(std::strtod(fmt::format("{:.{}f}", v.number(), precision).c_str(), nullptr),
                 v.origin);
  }
  const double rounded = std::nearbyint(v.number() * scale) / scale;
  const bool is_integer = v.is_integer() && std::fabs(rounded) < 9e18;
  return is_integer ? FromInt(static_cast<int64_t>(rounded), v.origin) : Value(rounded, v.origin);
}

Value Abs(Interpreter& run, const Value& v, const Arguments&) {
  if (v.is_undefined()) return run.FailUndefined(v);
  if (!v.is_number()) return run.Fail("abs takes a number");
  if (v.is_float()) return Value(std::fabs(v.number()), v.origin);
  return v.integer() < 0 ? run.Binary("-", FromInt(0), v) : FromInt(v.integer(), v.origin);
}

Value ToJsonFilter(Interpreter& run, const Value& v, const Arguments& arguments) {
  JsonStyle style;
  style.ensure_ascii = BoolArgument(arguments, 0, "ensure_ascii", false);
  style.sort_keys = BoolArgument(arguments, 3, "sort_keys", false);
  const Value* indent = arguments.Find(1, "indent");
  if (indent && !indent->is_none()) {
    style.item_separator = ",";
    style.indent =
        indent->is_string()
            ? indent->text().bytes()
            : Repeat(run, Text(" "), IntArgument(run, arguments, 1, "indent", 0)).bytes();
  }
  const Value* separators = arguments.Find(2, "separators");
  if (separators && !separators->is_none()) {
    const std::vector<Value> pair = run.Iterate(*separators);
    if (pair.size() != 2) return run.Fail("tojson: separators must be a pair");
    style.item_separator = ToText(pair[0]).bytes();
    style.key_separator = ToText(pair[1]).bytes();
  }
  return ToJson(run, v, style);
}

Value FromJsonFilter(Interpreter& run, const Value& v, const Arguments&) {
  if (v.is_undefined()) return run.FailUndefined(v);
  if (!v.is_string()) {
    return run.Fail("the JSON object must be str, not " + std::string(TypeName(v)));
  }
  return FromJsonText(run, v.text());
}

Value UrlEncode(Interpreter& run, const Value& v, const Arguments&) {
  if (!v.is_string()) return run.Fail("urlencode takes a string");
  const Text& text = v.text();
  Text out;
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(text.bytes()[i]);
    const bool plain = IsAsciiAlnum(static_cast<char>(c)) ||
                       std::string_view("_.-~/").find(char(c)) != std::string::npos;
    if (plain) {
      out.Append(text, i, i + 1);
    } else {
      out.Append(fmt::format("%{:02X}", c), text.OriginAt(i));
    }
  }
  return FromText(std::move(out));
}

Value FormatFilter(Interpreter& run, const Value& v, const Arguments& arguments) {
  if (arguments.named.empty()) {
    return FormatPercent(run, ToText(v), FromItems(arguments.positional, List::Kind::kTuple));
  }
  Dict named;
  for (const auto& [name, value] : arguments.named) named.Set(FromString(name), value);
  return FormatPercent(run, ToText(v), FromDict(std::move(named)));
}

Value Center(Interpreter& run, const Value& v, const Arguments& arguments) {
  Arguments width;
  width.positional.push_back(FromInt(IntArgument(run, arguments, 0, "width", 80)));
  return CallMethod(run, FromText(ToText(v)), "center", width);
}

}  // namespace

Text EscapeMarks(const Text& text) {
  Text out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes()[i];
    const char* entity = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '"'  ? "&#34;"
                         : c == '\'' ? "&#39;"
                                     : nullptr;
    if (entity) {
      out.Append(entity, text.OriginAt(i));
    } else {
      out.Append(text, i, i + 1);
    }
  }
  return out;
}

void AddTextFilters(FilterTable& table) {
  const auto add = [&table](std::string_view name, FilterFunction apply) {
    table[name] = {apply, /*reads_all=*/true};
  };
  add("trim", Trim);
  add("upper",
      [](Interpreter&, const Value& v, const Arguments&) { return FromText(Upper(ToText(v))); });
  add("lower",
      [](Interpreter&, const Value& v, const Arguments&) { return FromText(Lower(ToText(v))); });
  add("capitalize", [](Interpreter&, const Value& v, const Arguments&) {
    return FromText(Capitalize(ToText(v)));
  });
  add("title", Title);
  add("replace", ReplaceFilter);
  add("indent", Indent);
  add("escape", Escape);
  add("e", Escape);
  add("forceescape", ForceEscape);
  const FilterFunction to_text = [](Interpreter&, const Value& v, const Arguments&) {
    return v.is_string() ? v : FromText(ToText(v));
  };
  add("safe", [](Interpreter&, const Value& v, const Arguments&) {
    return AsMarkup(v.is_string() ? v : FromText(ToText(v)));
  });
  add("string", to_text);
  add("truncate", TruncateFilter);
  add("wordcount", WordCount);
  add("center", Center);
  add("int", ToInt);
  add("float", ToFloat);
  add("round", Round);
  add("abs", Abs);
  add("tojson", ToJsonFilter);
  add("from_json", FromJsonFilter);
  add("fromjson", FromJsonFilter);
  add("urlencode", UrlEncode);
  add("format", FormatFilter);
}

}  // namespace kvasir::jinja
