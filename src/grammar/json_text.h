// JsonText: expressions of JSON texts: strings, numbers in ranges, any value.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_tree.h"
#include "grammar/grammar_source.h"
#include "kvasir/status.h"

namespace kvasir {

// Integers without a limit are written with at most 18 digits, so that int64_t has them.
inline constexpr int64_t kMostInteger = 999'999'999'999'999'999;

// An integer of any length.
struct Decimal {
  bool is_negative = false;
  std::string digits = "0";  // without zeros before them

  // Reads JSON's text of an integer.
  static Decimal Of(std::string_view text);
  Decimal Next() const;      // + 1
  Decimal Previous() const;  // - 1
  std::strong_ordering operator<=>(const Decimal& other) const;
  bool operator==(const Decimal&) const = default;
};
struct IntegerBounds {
  std::optional<Decimal> least, most;
};

// Limits of a number; absent: none.
struct NumberBounds {
  std::optional<int64_t> least, most;
  bool is_above_least = false, is_below_most = false;  // the limit itself is excluded
};

// Rules that many places call are made once. One thread; `source` must outlive it.
class JsonText {
 public:
  explicit JsonText(GrammarSource* source) : source_(source) {}

  GrammarSource* source() const { return source_; }

  // Returns nothing, a space, or a new line with at most 20 columns of indent.
  ExpressionId Space();
  ExpressionId AnyValue();
  ExpressionId AnyString();
  ExpressionId AnyInteger();  // at most 18 digits
  ExpressionId AnyNumber();
  ExpressionId AnyObject();
  ExpressionId AnyArray();
  // Adds the texts of one value, with white space as elsewhere; members keep their order.
  ExpressionId Constant(const JsonValue& value);

  ExpressionId StringOfLength(uint32_t least, std::optional<uint32_t> most);
  // Returns any name but these, without escapes. kInvalidArgument: one of them is too long.
  Result<ExpressionId> OtherName(std::vector<std::string> names);
  // Adds the integers of [least, most]. REQUIRES: there is one.
  ExpressionId Integer(const IntegerBounds& bounds);
  // Adds numbers within bounds, with at most six digits after the point. REQUIRES: as Integer;
  // bounds of at most 10^9, so that no such number is rounded to a bound.
  ExpressionId Number(const NumberBounds& bounds);
  // Returns one character of a JSON string that stands for one of these.
  static ExpressionId WriteChars(GrammarSource* source, std::vector<CharRange> ranges);

 private:
  ExpressionId Shared(std::optional<RuleId>* rule, const char* name,
                      ExpressionId (JsonText::*make)());
  ExpressionId MakeSpace();
  ExpressionId MakeChar();
  ExpressionId MakeString();
  ExpressionId MakeInteger();
  ExpressionId MakeNumber();
  ExpressionId MakeValue();
  ExpressionId MakeObject();
  ExpressionId MakeArray();
  ExpressionId Char() { return Shared(&char_, "character", &JsonText::MakeChar); }
  ExpressionId Digits(uint32_t least, uint32_t most);
  ExpressionId Digit(char first, char last);
  // Adds numbers of `low` to `high`, which have as many digits.
  ExpressionId DigitsBetween(std::string_view low, std::string_view high);
  ExpressionId Between(std::string_view low, std::optional<std::string> high);
  // Adds numbers without a sign within bounds. Absent: no number is within them.
  std::optional<ExpressionId> Magnitude(const NumberBounds& bounds);
  ExpressionId OtherThan(const std::vector<std::u32string>& names, size_t begin, size_t end,
                         size_t depth);

  GrammarSource* const source_;
  std::optional<RuleId> space_, char_, string_, integer_, number_, value_, object_, array_;
};

}  // namespace kvasir
