// The filters, tests, methods and global functions of jinja2 and transformers, which a template can
// call without defining them.
#pragma once

#include <string_view>
#include <vector>

#include "jinja/interpreter.h"

namespace kvasir::jinja {

bool IsFilter(std::string_view name);
bool IsTest(std::string_view name);
bool IsFunction(std::string_view name);
// Returns all names, for tests.
std::vector<std::string_view> FilterNames();
std::vector<std::string_view> TestNames();
std::vector<std::string_view> FunctionNames();
std::vector<std::string_view> TextMethodNames();

// REQUIRES: IsFilter(name), IsTest(name), IsFunction(name).
Value ApplyFilter(Interpreter& run, std::string_view name, const Value& input,
                  const Arguments& arguments);
bool ApplyTest(Interpreter& run, std::string_view name, const Value& input,
               const Arguments& arguments);
Value CallFunction(Interpreter& run, std::string_view name, const Arguments& arguments);

// The kind of method that Python's object has under this name.
enum class MethodKind { kNone, kSafe, kMutating };
MethodKind FindMethod(const Value& self, std::string_view name);
Value CallMethod(Interpreter& run, const Value& self, std::string_view name,
                 const Arguments& arguments);
// Finds and calls methods of strings. CallTextMethod REQUIRES: IsTextMethod(name).
bool IsTextMethod(std::string_view name);
Value CallTextMethod(Interpreter& run, const Text& self, std::string_view name,
                     const Arguments& arguments);

// Formats as Python's "format % values" and format.format(...), without nested replacement fields.
Value FormatPercent(Interpreter& run, const Text& format, const Value& values);
Value FormatBraces(Interpreter& run, const Text& format, const Arguments& arguments);

// json.dumps as transformers calls it for `tojson`.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
Value ToJson(Interpreter& run, const Value& value, const JsonStyle& style);
// Parses as json.loads. Every value has the origin of the whole text. Fails where it is not JSON.
Value FromJsonText(Interpreter& run, const Text& text);

// Returns the text with HTML's marks escaped.
Text EscapeMarks(const Text& text);
// Text helpers that filters and methods share.
enum class Side { kLeft, kRight, kBoth };
// Strips white space, or the characters of *chars.
Text Strip(const Text& text, Side side, const Text* chars);
// Makes at most `max` replacements, all if negative.
Text Replace(Interpreter& run, const Text& text, std::string_view from, const Text& to,
             int64_t max);
Text Join(Interpreter& run, const std::vector<Value>& items, const Text& separator);
// `times` copies; fails and returns "" when the template may not build so much.
Text Repeat(Interpreter& run, const Text& text, int64_t times);
std::vector<Text> SplitLines(const Text& text, bool keep_ends);

// The table of filters, filled by the source files of the filters.
using FilterFunction = Value (*)(Interpreter&, const Value&, const Arguments&);
struct Filter {
  FilterFunction apply;
  bool reads_all;  // the whole weight of its input is charged first
};
using FilterTable = std::map<std::string_view, Filter>;

void AddTextFilters(FilterTable& table);
void AddSequenceFilters(FilterTable& table);
void AddOrderFilters(FilterTable& table);

// Returns item.a.b.0 for the attribute "a.b.0"; a number is a subscript.
Value Path(Interpreter& run, Value item, const Value& attribute);

}  // namespace kvasir::jinja
